// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/remove_tree.h"

#include "tessera/runtime/core/error.h"

#include <vector>

namespace tessera::runtime {

namespace fs = std::filesystem;

namespace {

struct Failure {
  fs::path path;
  std::error_code code;
};

/// @param first stays as it is if something has failed before.
void remove_all_of(const fs::path& path, Failure& first) {
  std::error_code code;
  const auto note = [&] {
    if (code && code != std::errc::no_such_file_or_directory && !first.code) {
      first = {path, code};
    }
  };
  if (fs::is_directory(fs::symlink_status(path, code))) {
    std::vector<fs::path> entries;
    fs::directory_iterator entry(path, code);
    for (; !code && entry != fs::directory_iterator(); entry.increment(code)) {
      entries.push_back(entry->path());
    }
    note();
    for (const fs::path& inner : entries) {
      remove_all_of(inner, first);
    }
  }
  code.clear();
  fs::remove(path, code);
  note();
}

} // namespace

void remove_tree(const fs::path& path, std::error_code& code) {
  Failure first;
  remove_all_of(path, first);
  code = first.code;
}

void remove_tree(const fs::path& path) {
  Failure first;
  remove_all_of(path, first);
  TESSERA_CHECK(
      !first.code,
      "cannot remove '{}': {}; check its permissions",
      first.path.string(),
      first.code.message());
}

} // namespace tessera::runtime
