// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/posix_file.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/posix_error.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace tessera::runtime::detail {

namespace fs = std::filesystem;

void fail_on(const char* label, const fs::path& path, int code) {
  TESSERA_FAIL(
      "cannot {} '{}': {}; {}",
      label,
      path.string(),
      errno_text(code),
      errno_remedy(code));
}

void sync_folder(const fs::path& folder) {
  const fs::path name = folder.empty() ? fs::path(".") : folder;
  const int fd = ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    fail_on("open the folder", name, errno);
  }
  const int rc = ::fsync(fd);
  const int code = errno;
  ::close(fd);
  // Some file systems do not support syncing a folder (EINVAL) and do not need
  // it.
  if (rc != 0 && code != EINVAL) {
    fail_on("sync the folder", name, code);
  }
}

void cut_appended(int fd, size_t bytes) noexcept {
  const int code = errno;
  struct stat status {};
  if (bytes > 0 && ::fstat(fd, &status) == 0) {
    [[maybe_unused]] const int ignored =
        ::ftruncate(fd, status.st_size - static_cast<off_t>(bytes));
  }
  errno = code;
}

} // namespace tessera::runtime::detail
