// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/atomic_folder.h"

#include <fcntl.h>
#include <stdio.h> // renameat2
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/posix_file.h"

namespace tessera::runtime {

namespace fs = std::filesystem;

namespace {

fs::path hidden_beside(const fs::path& path, const char* ending) {
  return path.parent_path() /
         formatted(".{}{}", path.filename().string(), ending);
}

void remove_tree(const fs::path& path) {
  std::error_code code;
  fs::remove_all(path, code);
  if (code) {
    detail::fail_on("remove", path, code.value());
  }
}

} // namespace

fs::path partial_folder_of(const fs::path& final_path) {
  return hidden_beside(final_path, ".partial");
}

void begin_folder(const fs::path& final_path) {
  const fs::path partial = partial_folder_of(final_path);
  remove_tree(partial);
  std::error_code code;
  fs::create_directories(partial, code);
  if (code) {
    detail::fail_on("create the folder", partial, code.value());
  }
}

void commit_folder(const fs::path& final_path) {
  const fs::path partial = partial_folder_of(final_path);
  detail::sync_folder(partial);
  const bool replaces = fs::exists(final_path);
  const int rc = ::renameat2(
      AT_FDCWD,
      partial.c_str(),
      AT_FDCWD,
      final_path.c_str(),
      replaces ? RENAME_EXCHANGE : 0);
  if (rc != 0) {
    detail::fail_on("move the finished folder to", final_path, errno);
  }
  detail::sync_folder(final_path.parent_path());
  if (replaces) {
    remove_tree(partial); // what was there before
  }
}

void remove_folder(const fs::path& path) {
  const fs::path hidden = hidden_beside(path, ".removed");
  remove_tree(hidden);
  if (::rename(path.c_str(), hidden.c_str()) != 0) {
    detail::fail_on("remove", path, errno);
  }
  remove_tree(hidden);
}

} // namespace tessera::runtime
