// SPDX-License-Identifier: Apache-2.0
#pragma once
// The system calls behind files of the NVMe tier, in one place where tests can
// make them fail.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

struct io_uring;

namespace tessera {

/// One read or write of a part of a file.
struct IoOperation {
  bool is_write = false;
  int fd = -1;
  std::byte* data = nullptr;
  int64_t bytes = 0;
  int64_t offset = 0; ///< in the file
};

/// Each does what its name says, and returns what the system did. Thread-safe.
class IoCalls {
 public:
  virtual ~IoCalls() = default;

  /// A new file that is read and written. @return the descriptor, or -errno.
  virtual int create(const char* path) const;
  /// Takes room on the disk up to `bytes`. @return 0 or an errno.
  virtual int allocate(int fd, int64_t bytes) const;
  /// Switches O_DIRECT. @return 0 or an errno.
  virtual int set_direct(int fd, bool direct) const;
  /// @return the file's size, or -errno.
  virtual int64_t size_of(int fd) const;
  /// @return 0 or -errno.
  virtual int make_ring(unsigned entries, io_uring* ring) const;
  /// What an operation came to: bytes, or -errno. @param result the system's.
  virtual int64_t result_of(const IoOperation& operation, int64_t result) const;
};

/// The system's own.
const IoCalls& system_io_calls();

} // namespace tessera
