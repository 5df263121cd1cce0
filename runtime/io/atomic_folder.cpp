// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/atomic_folder.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/posix_file.h"
#include "tessera/runtime/io/remove_tree.h"

#include <fcntl.h>
#include <stdio.h> // renameat2
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace tessera::runtime {

namespace fs = std::filesystem;

namespace {

fs::path hidden_beside(const fs::path& path, const char* ending) {
  return path.parent_path() /
         formatted(".{}{}", path.filename().string(), ending);
}

void rename_folder(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    detail::fail_on("rename", from, errno);
  }
}

/// Locks the temporary folder of `final_path`, where the file system has locks.
/// @return nothing if it does not exist.
/// @throws Error when another process has locked it.
UniqueFd lock_folder(const fs::path& temporary, const fs::path& final_path) {
  UniqueFd folder(
      ::open(temporary.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  TESSERA_CHECK(
      folder.get() < 0 || ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0 ||
          errno != EWOULDBLOCK,
      "another process is writing the folder {}; wait for it, or choose another folder",
      final_path);
  return folder;
}

} // namespace

fs::path resolved_folder(const fs::path& path) {
  // weakly_canonical() leaves a relative path that does not exist as it is.
  std::error_code error;
  fs::path resolved = fs::weakly_canonical(fs::absolute(path, error), error);
  if (!error && !resolved.has_filename()) {
    resolved = resolved.parent_path();
  }
  TESSERA_CHECK(
      !error && resolved.has_filename(),
      "the folder {} cannot be written: {}; choose another one",
      path,
      error ? error.message() : "it has no name");
  // Links that lead somewhere have been followed.
  for (fs::path above = resolved; above.has_relative_path();
       above = above.parent_path()) {
    TESSERA_CHECK(
        !fs::is_symlink(above, error),
        "the folder {} cannot be written: {} is a link to {}, which does not exist; create that folder, or choose another one",
        path,
        above,
        fs::read_symlink(above, error));
    TESSERA_CHECK(
        above == resolved || !fs::exists(above, error) ||
            fs::is_directory(above, error),
        "the folder {} cannot be written: {} is a file; choose a folder",
        path,
        above);
  }
  return resolved;
}

fs::path AtomicFolder::temporary_of(const fs::path& path) {
  return hidden_beside(path, ".partial");
}

AtomicFolder::AtomicFolder(const fs::path& path, IsOwn is_own)
    : path_(resolved_folder(path)),
      temporary_(temporary_of(path_)),
      is_own_(std::move(is_own)) {
  check_replaceable(path_, is_own_);
  {
    const UniqueFd left_over = lock_folder(temporary_, path_);
    remove_tree(temporary_);
  }
  std::error_code code;
  fs::create_directories(temporary_, code);
  if (code) {
    detail::fail_on("create the folder", temporary_, code.value());
  }
  lock_ = lock_folder(temporary_, path_);
}

AtomicFolder::~AtomicFolder() {
  if (!committed_) {
    std::error_code ignored;
    remove_tree(temporary_, ignored);
  }
}

void check_replaceable(
    const fs::path& path,
    const AtomicFolder::IsOwn& is_own) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return;
  }
  TESSERA_CHECK(
      fs::is_directory(status),
      "{} exists and is not a folder; choose another name",
      path);
  if (!is_own) {
    return;
  }
  for (fs::directory_iterator entry(path, error), end; entry != end;
       entry.increment(error)) {
    TESSERA_CHECK(
        is_own(entry->path().filename().string()),
        "{} exists and holds {}, which would be lost; choose another folder, or move it away",
        path,
        entry->path().filename());
  }
  if (error) {
    detail::fail_on("read the folder", path, error.value());
  }
}

void AtomicFolder::commit() {
  TESSERA_CHECK(!committed_, "{} has already been committed", path_);
  check_replaceable(path_, is_own_); // it may have been created meanwhile
  detail::sync_folder(temporary_);
  fs::path old = temporary_;
  if (!fs::exists(path_)) {
    rename_folder(temporary_, path_);
    old.clear();
  } else if (
      ::renameat2(
          AT_FDCWD,
          temporary_.c_str(),
          AT_FDCWD,
          path_.c_str(),
          RENAME_EXCHANGE) != 0) {
    if (errno != EINVAL && errno != ENOSYS) {
      detail::fail_on("move the finished folder to", path_, errno);
    }
    old = hidden_beside(path_, ".old");
    remove_tree(old);
    rename_folder(path_, old);
    rename_folder(temporary_, path_);
  }
  committed_ = true;
  detail::sync_folder(path_.parent_path());
  if (!old.empty()) {
    std::error_code ignored; // a leftover is harmless
    remove_tree(old, ignored);
  }
}

void remove_folder(const fs::path& path) {
  const fs::path hidden = hidden_beside(path, ".removed");
  remove_tree(hidden);
  rename_folder(path, hidden);
  remove_tree(hidden);
}

} // namespace tessera::runtime
