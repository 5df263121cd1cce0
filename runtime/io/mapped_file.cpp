// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/posix_error.h"

namespace tessera::runtime {

MappedFile::MappedFile(
    const std::filesystem::path& path,
    const std::string& label) {
  // Without O_NONBLOCK, opening a pipe would wait for its other end.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status {};
  int code = 0;
  if (fd < 0 || ::fstat(fd, &status) != 0) {
    code = errno;
  } else if (!S_ISREG(status.st_mode)) {
    code = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
  } else if (status.st_size > 0) {
    const auto size = static_cast<size_t>(status.st_size);
    void* at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED) {
      code = errno;
    } else {
      bytes_ = {static_cast<const std::byte*>(at), size};
    }
  }
  if (fd >= 0) {
    ::close(fd); // The mapping keeps the file open.
  }
  TESSERA_CHECK(
      code == 0,
      "cannot open the {} '{}': {}; {}",
      label,
      path.string(),
      detail::errno_text(code),
      detail::errno_remedy(code));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

} // namespace tessera::runtime
