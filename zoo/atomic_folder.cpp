// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/atomic_folder.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/posix_error.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace tessera::zoo {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const char* what, const fs::path& path, int code) {
  TESSERA_FAIL(
      "cannot {} the folder {}: {}; {}",
      what,
      path,
      runtime::detail::errno_text(code),
      runtime::detail::errno_remedy(code));
}

void make_durable(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    fail("open", folder, errno);
  }
  const int result = ::fsync(fd);
  const int code = errno;
  ::close(fd);
  if (result != 0) {
    fail("write", folder, code);
  }
}

void rename_folder(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    fail("rename", from, errno);
  }
}

} // namespace

AtomicFolder::AtomicFolder(
    const fs::path& path,
    std::function<bool(const std::string& name)> is_own)
    : is_own_(std::move(is_own)) {
  // Resolves links and strips a trailing slash: the name that is replaced.
  // weakly_canonical() leaves a relative path that does not exist as it is.
  std::error_code error;
  path_ = fs::weakly_canonical(fs::absolute(path, error), error);
  if (!error && !path_.has_filename()) {
    path_ = path_.parent_path();
  }
  TESSERA_CHECK(
      !error && path_.has_filename(),
      "the folder {} cannot be written: {}; choose another one",
      path,
      error ? error.message() : "it has no name");
  check_replaceable(path_, is_own_);
  temporary_ = path_;
  temporary_ += ".tmp-" + std::to_string(::getpid());
  if (path_.has_parent_path()) {
    fs::create_directories(path_.parent_path(), error);
  }
  if (!error) {
    fs::remove_all(temporary_, error); // left by a dead process with our pid
  }
  if (!error) {
    fs::create_directory(temporary_, error);
  }
  if (error) {
    fail("create", temporary_, error.value());
  }
}

AtomicFolder::~AtomicFolder() {
  if (!committed_) {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  }
}

void check_replaceable(
    const fs::path& path,
    const std::function<bool(const std::string& name)>& is_own) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return;
  }
  TESSERA_CHECK(
      fs::is_directory(status),
      "{} exists and is not a folder; choose another name",
      path);
  for (fs::directory_iterator entry(path, error), end; entry != end;
       entry.increment(error)) {
    TESSERA_CHECK(
        is_own(entry->path().filename().string()),
        "{} exists and holds {}, which would be lost; choose another folder, or move it away",
        path,
        entry->path().filename());
  }
  if (error) {
    fail("read", path, error.value());
  }
}

void AtomicFolder::commit() {
  TESSERA_CHECK(!committed_, "{} has already been committed", path_);
  check_replaceable(path_, is_own_); // it may have been created meanwhile
  make_durable(temporary_);
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
      fail("replace", path_, errno);
    }
    old = path_;
    old += ".old-" + std::to_string(::getpid());
    rename_folder(path_, old);
    rename_folder(temporary_, path_);
  }
  committed_ = true;
  make_durable(path_.parent_path());
  if (!old.empty()) {
    std::error_code ignored; // a leftover is harmless
    fs::remove_all(old, ignored);
  }
}

} // namespace tessera::zoo
