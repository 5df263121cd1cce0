// SPDX-License-Identifier: Apache-2.0
#pragma once
// `IoQueue` runs several reads and writes of files at the same time.

#include "tessera/offload/stores/io_calls.h"

#include <cstdint>
#include <memory>
#include <string>

namespace tessera::offload {

/// Used by one thread.
class IoQueue {
 public:
  struct Completion {
    uint64_t tag = 0;
    int64_t result = 0; ///< bytes, maybe fewer than requested, or -errno
  };

  virtual ~IoQueue() = default;

  /// Begins an operation; at most `depth` may be in flight.
  /// @param tag returned with its completion.
  virtual void submit(const IoOperation& operation, uint64_t tag) = 0;
  /// Blocks until some operation completes.
  virtual Completion wait() = 0;
};

/// A queue over io_uring.
/// @return null if the system forbids it, with the reason in `why`.
std::unique_ptr<IoQueue> make_uring_queue(
    unsigned depth,
    const IoCalls& calls,
    std::string& why);

/// A queue over threads that call pread and pwrite.
std::unique_ptr<IoQueue> make_thread_queue(unsigned threads);

} // namespace tessera::offload
