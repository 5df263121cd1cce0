// SPDX-License-Identifier: Apache-2.0
#pragma once
// Host memory that state passes through which cannot be updated where it rests.

#include "tessera/offload/host_memory.h"
#include "tessera/runtime/memory/pending_transfer.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace tessera {

/// Buffers that are handed out in turn: while one group is updated in the
/// first, the next one's state arrives in the second, and the last one's leaves
/// from the third.
class StateStage {
 public:
  static constexpr int64_t kBuffers = 3;

  class Buffer {
   public:
    /// [numel], aligned to a page, uninitialised.
    at::Tensor place(int64_t numel, at::ScalarType dtype);
    /// What place() takes of a buffer.
    static int64_t bytes_for(int64_t numel, at::ScalarType dtype);

   private:
    friend class StateStage;
    at::Tensor memory_; ///< [bytes] uint8
    int64_t used_ = 0;
    bool is_extra_ = false; ///< goes when it is given back
    std::vector<PendingTransfer> leaving_;
  };

  /// Some group needs a buffer of so many bytes; before allocate().
  void need(int64_t bytes);

  /// Of all buffers, allocated or not.
  int64_t bytes() const;

  /// @param memory outlives the stage.
  void allocate(HostMemory& memory);

  /// A buffer of at least `bytes`. Blocks while the transfers of its last user
  /// are under way. When all are in use it is one more.
  /// @throws tessera::Error when one of those failed.
  std::shared_ptr<Buffer> take(int64_t bytes);

  /// Ends the use of a buffer, once the transfers have ended.
  void give_back(
      std::shared_ptr<Buffer> buffer,
      std::vector<PendingTransfer> leaving);

 private:
  int64_t buffer_bytes_ = 0; ///< the largest need
  int64_t users_ = 0;
  HostMemory* memory_ = nullptr;
  std::deque<std::shared_ptr<Buffer>> idle_; ///< the longest idle first
};

} // namespace tessera
