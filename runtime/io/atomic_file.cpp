// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/posix_file.h"

namespace tessera::runtime {

namespace fs = std::filesystem;

namespace {

// Distinguishes the temporary files of one process.
std::atomic<unsigned> temporary_counter{0};

constexpr size_t kBlock = detail::kDirectAlignment;
constexpr size_t kAlignedBytes = size_t{8} << 20;
constexpr uint64_t kSmallestDirect = 1 << 20;

/// The file that a link leads to takes the place of the old one, and the link
/// stays.
fs::path target_of(fs::path path) {
  constexpr int kMostLinks = 40; // as the kernel
  std::error_code code;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, code); ++i) {
    const fs::path next = fs::read_symlink(path, code);
    if (code) {
      break;
    }
    path = next.is_absolute() ? next : path.parent_path() / next;
  }
  return path;
}

} // namespace

void AtomicFile::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

AtomicFile::AtomicFile(fs::path path) : path_(target_of(std::move(path))) {
  TESSERA_CHECK(
      path_.has_filename(),
      "cannot write '{}': it names no file; add a file name",
      path_.string());
  // The name may be taken by a leftover of a dead process with the same id, or
  // by a process on another machine that shares the disk.
  do {
    temporary_ = path_;
    temporary_ += formatted(".tmp-{}-{}", ::getpid(), temporary_counter++);
    fd_ = ::open(
        temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ < 0) {
    detail::fail_on("create", temporary_, errno);
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)),
      direct_fd_(std::move(other.direct_fd_)),
      may_be_direct_(other.may_be_direct_),
      aligned_(std::move(other.aligned_)) {}

void AtomicFile::reserve(uint64_t bytes) {
  if (bytes == 0) {
    return;
  }
  // Returns the error instead of setting errno.
  int code = 0;
  do {
    code = ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes));
  } while (code == EINTR);
  if (code != 0) {
    detail::fail_on("reserve space for", temporary_, code);
  }
}

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> data) {
  // Whole blocks directly; their neighbors may be parts of other writes.
  const uint64_t begin = (offset + kBlock - 1) / kBlock * kBlock;
  const uint64_t end = (offset + data.size()) / kBlock * kBlock;
  if (end < begin + kSmallestDirect || !opens_directly()) {
    write_through_cache(offset, data);
    return;
  }
  const auto before = static_cast<size_t>(begin - offset);
  write_through_cache(offset, data.first(before));
  const size_t written = write_directly(
      begin, data.subspan(before, static_cast<size_t>(end - begin)));
  write_through_cache(begin + written, data.subspan(before + written));
}

bool AtomicFile::opens_directly() {
  if (!direct_fd_.is_open() && may_be_direct_) {
    direct_fd_.reset(
        ::open(temporary_.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC));
    may_be_direct_ = direct_fd_.is_open();
  }
  if (direct_fd_.is_open() && aligned_ == nullptr) {
    aligned_.reset(
        static_cast<std::byte*>(std::aligned_alloc(kBlock, kAlignedBytes)));
    if (aligned_ == nullptr) {
      throw std::bad_alloc();
    }
  }
  return direct_fd_.is_open();
}

size_t AtomicFile::write_directly(
    uint64_t offset,
    std::span<const std::byte> data) {
  size_t done = 0;
  while (done < data.size()) {
    const size_t bytes = std::min(kAlignedBytes, data.size() - done);
    std::memcpy(aligned_.get(), data.data() + done, bytes);
    const ssize_t written = ::pwrite(
        direct_fd_.get(),
        aligned_.get(),
        bytes,
        static_cast<off_t>(offset + done));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0 && errno != EINVAL) {
      detail::fail_on("write", temporary_, errno);
    }
    // A disk with larger blocks, or one that is nearly full.
    const size_t full =
        written < 0 ? 0 : static_cast<size_t>(written) / kBlock * kBlock;
    done += full;
    if (full == 0) {
      direct_fd_.reset();
      may_be_direct_ = false;
      break;
    }
  }
  return done;
}

void AtomicFile::write_through_cache(
    uint64_t offset,
    std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t written =
        ::pwrite(fd_, data.data(), data.size(), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      detail::fail_on("write", temporary_, errno);
    }
    offset += static_cast<uint64_t>(written);
    data = data.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::commit() {
  TESSERA_CHECK(
      fd_ >= 0,
      "cannot commit '{}' a second time; write a new AtomicFile instead",
      path_.string());
  if (::fsync(fd_) != 0) {
    detail::fail_on("sync", temporary_, errno);
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    detail::fail_on("move the finished file to", path_, errno);
  }
  ::close(std::exchange(fd_, -1)); // Synced: closing can lose nothing.
  detail::sync_folder(path_.parent_path());
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(content)));
  file.commit();
}

std::string read_text_file(const fs::path& path) {
  // Without O_NONBLOCK, opening a pipe would wait for its other end.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    detail::fail_on("read", path, errno);
  }
  struct Closer {
    int fd;
    ~Closer() {
      ::close(fd);
    }
  } closer{fd};
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    detail::fail_on("read", path, errno);
  }
  TESSERA_CHECK(
      S_ISREG(status.st_mode),
      "cannot read '{}': it is not a regular file; name a file, not a folder or device",
      path.string());
  std::string content(static_cast<size_t>(status.st_size), '\0');
  size_t filled = 0;
  while (filled < content.size()) {
    const ssize_t count =
        ::read(fd, content.data() + filled, content.size() - filled);
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      detail::fail_on("read", path, errno);
    }
    if (count == 0) {
      break; // The file was truncated meanwhile.
    }
    filled += static_cast<size_t>(count);
  }
  content.resize(filled);
  return content;
}

} // namespace tessera::runtime
