// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StagingBuffers` are buffers in host memory for shards and state that cannot
// be updated where they rest.

#include "tessera/offload/stores/host_memory.h"
#include "tessera/runtime/memory/pending_transfer.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace tessera::offload {

/// Buffers that are used in rotation: while one page is updated in the first,
/// the state of the next one arrives in the second, and that of the previous
/// one leaves the third.
class StagingBuffers {
 public:
  static constexpr int64_t kBuffers = 3;

  class Buffer {
   public:
    /// [numel], aligned to a page, uninitialized.
    at::Tensor place(int64_t numel, at::ScalarType dtype);
    /// The bytes that place() takes of a buffer.
    static int64_t bytes_for(int64_t numel, at::ScalarType dtype);

   private:
    friend class StagingBuffers;
    at::Tensor memory_; ///< [bytes] uint8
    int64_t used_ = 0;
    bool is_extra_ = false; ///< freed when it is given back
    std::vector<runtime::PendingTransfer> leaving_;
  };

  /// Records that an update needs a buffer of `bytes`; call it before
  /// allocate().
  void need(int64_t bytes);

  /// Bytes of all buffers, allocated or not.
  int64_t bytes() const;

  /// @param memory must outlive this object.
  void allocate(HostMemory& memory);

  /// Returns a buffer of at least `bytes`. Blocks while transfers of its last
  /// user are in progress. If all are in use, it allocates an extra one.
  /// @throws tessera::Error if one of those transfers failed.
  std::shared_ptr<Buffer> take(int64_t bytes);

  /// Ends the use of a buffer; it is free when the transfers have ended.
  void give_back(
      std::shared_ptr<Buffer> buffer,
      std::vector<runtime::PendingTransfer> leaving);

 private:
  int64_t buffer_bytes_ = 0; ///< the largest need
  int64_t users_ = 0;
  HostMemory* memory_ = nullptr;
  std::deque<std::shared_ptr<Buffer>> idle_; ///< the longest idle first
};

} // namespace tessera::offload
