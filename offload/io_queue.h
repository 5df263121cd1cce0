// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads and writes of files that are under way at the same time.

#include "tessera/offload/io_calls.h"

#include <cstdint>
#include <memory>
#include <string>

namespace tessera {

/// Used by one thread.
class IoQueue {
 public:
  struct Completion {
    uint64_t tag = 0;
    int64_t result = 0; ///< bytes, which may be fewer than asked; or -errno
  };

  virtual ~IoQueue() = default;

  /// Begins an operation; at most `depth` are under way. @param tag comes back
  /// with its completion.
  virtual void submit(const IoOperation& operation, uint64_t tag) = 0;
  /// Blocks until some operation ends.
  virtual Completion wait() = 0;
};

/// One over io_uring. @return null where the system forbids it, and in `why`
/// its reason.
std::unique_ptr<IoQueue> make_uring_queue(
    unsigned depth,
    const IoCalls& calls,
    std::string& why);

/// One over threads that call pread and pwrite.
std::unique_ptr<IoQueue> make_thread_queue(unsigned threads);

} // namespace tessera
