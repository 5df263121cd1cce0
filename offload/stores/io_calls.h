// SPDX-License-Identifier: Apache-2.0
#pragma once
// `IoCalls` wraps the system calls of files of the NVMe tier, so that tests can
// make them fail.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

struct io_uring;

namespace tessera::offload {

/// One read or write of a range of a file.
struct IoOperation {
  bool is_write = false;
  int fd = -1;
  std::byte* data = nullptr;
  int64_t bytes = 0;
  int64_t offset = 0; ///< in the file
};

/// Each function does what its name says and returns the system's result.
/// Thread-safe.
class IoCalls {
 public:
  virtual ~IoCalls() = default;

  /// Creates a file for reading and writing.
  /// @return the descriptor, or -errno.
  virtual int create(const char* path) const;
  /// Reserves disk space up to `bytes`.
  /// @return 0 or an errno.
  virtual int allocate(int fd, int64_t bytes) const;
  /// Switches O_DIRECT.
  /// @return 0 or an errno.
  virtual int set_direct(int fd, bool direct) const;
  /// @return the size of the file, or -errno.
  virtual int64_t size_of(int fd) const;
  /// @return 0 or -errno.
  virtual int make_ring(unsigned entries, io_uring* ring) const;
  /// The result of an operation: bytes, or -errno.
  /// @param result that of the system.
  virtual int64_t result_of(const IoOperation& operation, int64_t result) const;
};

/// The real system calls.
const IoCalls& system_io_calls();

/// Those of a dry run: files that have any size, no contents and no place in
/// their folder. Nothing reads or writes them; see BlockPipeline::begin().
const IoCalls& dry_io_calls();

} // namespace tessera::offload
