// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/appended_file.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/posix_error.h"
#include "tessera/runtime/io/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace tessera::engine {

AppendedFile::AppendedFile(
    std::filesystem::path path,
    std::string label,
    Mode mode)
    : path_(std::move(path)), label_(std::move(label)) {
  const int flags = mode == Mode::kNew      ? O_TRUNC
                    : mode == Mode::kCreate ? O_EXCL
                                            : 0;
  // Reads only to find a torn line.
  fd_ = ::open(
      path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | flags, 0666);
  if (fd_ < 0) {
    if (mode == Mode::kCreate && errno == EEXIST) {
      return;
    }
    fail();
  }
  try {
    if (mode == Mode::kAppendLines) {
      cut_torn_line();
    }
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

AppendedFile::~AppendedFile() {
  if (is_open()) {
    ::close(fd_);
  }
}

void AppendedFile::append(std::string_view record) {
  size_t done = 0;
  while (done < record.size()) {
    const ssize_t count =
        ::write(fd_, record.data() + done, record.size() - done);
    if (count < 0 && errno != EINTR) {
      runtime::detail::cut_appended(fd_, done);
      fail();
    }
    done += count < 0 ? 0 : static_cast<size_t>(count);
  }
}

void AppendedFile::fail() const {
  const int code = errno;
  TESSERA_FAIL(
      "cannot write {} '{}': {}; {}",
      label_,
      path_.string(),
      runtime::detail::errno_text(code),
      runtime::detail::errno_remedy(code));
}

// A process that died within a line left a tail that is not one.
void AppendedFile::cut_torn_line() {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) {
    fail();
  }
  std::array<char, 4096> block;
  off_t end = status.st_size;
  while (end > 0) {
    const off_t begin =
        std::max<off_t>(0, end - static_cast<off_t>(block.size()));
    const ssize_t count =
        ::pread(fd_, block.data(), static_cast<size_t>(end - begin), begin);
    if (count < 0) {
      fail();
    }
    const std::string_view text(block.data(), static_cast<size_t>(count));
    const size_t newline = text.rfind('\n');
    if (newline != std::string_view::npos) {
      end = begin + static_cast<off_t>(newline) + 1;
      break;
    }
    end = begin;
  }
  if (end != status.st_size && ::ftruncate(fd_, end) != 0) {
    fail();
  }
}

} // namespace tessera::engine
