// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/remove_tree.h"

#include "tessera/runtime/core/error.h"

#include <vector>

namespace tessera::runtime {

namespace fs = std::filesystem;

namespace {

/// @return the first path that could not be removed; empty without an error.
fs::path remove_all_of(const fs::path& path, std::error_code& code) {
  fs::path failed;
  std::error_code error;
  const auto note = [&](const fs::path& at) {
    if (error && error != std::errc::no_such_file_or_directory && !code) {
      code = error;
      failed = at;
    }
  };
  if (fs::is_directory(fs::symlink_status(path, error))) {
    std::vector<fs::path> entries;
    fs::directory_iterator entry(path, error);
    for (; !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      entries.push_back(entry->path());
    }
    note(path);
    for (const fs::path& inner : entries) {
      const bool is_first = !code;
      const fs::path at = remove_all_of(inner, code);
      if (is_first) {
        failed = at;
      }
    }
  }
  error.clear();
  fs::remove(path, error);
  note(path);
  return failed;
}

} // namespace

void remove_tree(const fs::path& path, std::error_code& code) {
  code.clear();
  remove_all_of(path, code);
}

void remove_tree(const fs::path& path) {
  std::error_code code;
  const fs::path failed = remove_all_of(path, code);
  TESSERA_CHECK(
      !code,
      "cannot remove '{}': {}; check its permissions",
      failed.string(),
      code.message());
}

} // namespace tessera::runtime
