// SPDX-License-Identifier: Apache-2.0
#pragma once
// One buffer, allocated once, in which short-lived flat tensors get a place.

#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/offset_allocator.h"
#include "tessera/runtime/memory/range_marks.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace tessera {

/// A place in a SlotArena, or a buffer of its own when the arena was full.
struct Slot {
  at::Tensor tensor; ///< [numel], contiguous, uninitialised
  int64_t offset = -1; ///< in the arena, or -1 for a buffer of its own
  /// What whoever touches the memory next waits for, on every stream: the work
  /// of those who had it before. Who uses the slot puts marks behind its own
  /// work here before release(). Empty on the CPU.
  StreamMarks after{};

  bool defined() const {
    return tensor.defined();
  }
};

class SlotArena {
 public:
  /// @param ledger outlives the arena.
  SlotArena(MemoryLedger& ledger, MemoryPurpose purpose, at::Device device);

  /// Replaces the buffer by one of `capacity_bytes`. Needs all slots released.
  void resize(int64_t capacity_bytes);

  int64_t capacity_bytes() const {
    return allocator_.capacity_bytes();
  }

  /// A slot in the arena, or an undefined one when there is no room.
  Slot try_allocate(
      int64_t numel,
      at::ScalarType dtype,
      OffsetAllocator::End end = OffsetAllocator::End::kLow);

  /// A slot outside the arena, freed on release(): for what was not planned.
  Slot allocate_outside(int64_t numel, at::ScalarType dtype);

  /// Gives the slot back and leaves it undefined. Slot::after goes to whoever
  /// gets this memory next.
  void release(Slot& slot);

 private:
  MemoryLedger& ledger_;
  MemoryPurpose purpose_;
  at::Device device_;
  at::Tensor buffer_; ///< [capacity] uint8
  OffsetAllocator allocator_{0};
  RangeMarks marks_;
  int live_slots_ = 0;
};

} // namespace tessera
