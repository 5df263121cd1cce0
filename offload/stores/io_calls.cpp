// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/stores/io_calls.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <limits>

namespace tessera::offload {

int IoCalls::create(const char* path) const {
  const int fd =
      ::open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  return fd < 0 ? -errno : fd;
}

int IoCalls::allocate(int fd, int64_t bytes) const {
  int code = 0;
  do {
    code = ::posix_fallocate(fd, 0, bytes);
  } while (code == EINTR);
  return code;
}

int IoCalls::set_direct(int fd, bool direct) const {
  const int flags = ::fcntl(fd, F_GETFL);
  const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
  return flags < 0 || ::fcntl(fd, F_SETFL, wanted) != 0 ? errno : 0;
}

int64_t IoCalls::size_of(int fd) const {
  struct stat status {};
  return ::fstat(fd, &status) != 0 ? -errno : status.st_size;
}

int IoCalls::make_ring(unsigned entries, io_uring* ring) const {
  return ::io_uring_queue_init(entries, ring, 0);
}

int64_t IoCalls::result_of(const IoOperation&, int64_t result) const {
  return result;
}

const IoCalls& system_io_calls() {
  static const IoCalls kCalls;
  return kCalls;
}

namespace {

class DryIoCalls : public IoCalls {
 public:
  int create(const char* /*path*/) const override {
    const int fd = ::memfd_create("tessera", MFD_CLOEXEC);
    return fd < 0 ? -errno : fd;
  }
  int allocate(int /*fd*/, int64_t /*bytes*/) const override {
    return 0;
  }
  int set_direct(int /*fd*/, bool /*direct*/) const override {
    return 0;
  }
  int64_t size_of(int /*fd*/) const override {
    return std::numeric_limits<int64_t>::max();
  }
};

} // namespace

const IoCalls& dry_io_calls() {
  static const DryIoCalls kCalls;
  return kCalls;
}

} // namespace tessera::offload
