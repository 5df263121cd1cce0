// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SlotArena` gives slots to short-lived flat tensors, in memory of a planned
// size.

#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/runtime/memory/offset_allocator.h"
#include "tessera/runtime/memory/range_marks.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace tessera::runtime {

/// A place in a SlotArena, or a separate buffer if the arena was full.
struct Slot {
  at::Tensor tensor; ///< [numel], contiguous, uninitialized
  int64_t offset = -1; ///< in the arena, or -1 for a separate buffer
  /// Work of previous users of the memory, which any stream must wait for
  /// before it touches the slot. Before release(), the user of the slot stores
  /// marks of its own work here. Empty on the CPU.
  StreamMarks after{};

  bool defined() const {
    return tensor.defined();
  }
};

class SlotArena {
 public:
  /// Where the memory of slots comes from.
  enum class Memory {
    kOneBuffer, ///< allocated once
    /// Allocated with each slot, within the same places: memory that no slot is
    /// in can be used elsewhere. For allocators that always find it again.
    kEachSlot,
  };

  /// @param ledger must outlive the arena.
  SlotArena(
      MemoryLedger& ledger,
      MemoryPurpose purpose,
      at::Device device,
      Memory memory = Memory::kOneBuffer);

  /// Replaces the arena by one of `capacity_bytes`. All slots must be
  /// released.
  void resize(int64_t capacity_bytes);

  int64_t capacity_bytes() const {
    return allocator_.capacity_bytes();
  }

  /// Of capacity_bytes(), what is allocated now.
  int64_t allocated_bytes() const;

  /// Returns a slot in the arena, or an undefined one if there is no room.
  Slot try_allocate(
      int64_t numel,
      at::ScalarType dtype,
      OffsetAllocator::End end = OffsetAllocator::End::kLow);

  /// Returns a slot outside the arena, freed on release(); for unplanned use.
  Slot allocate_outside(int64_t numel, at::ScalarType dtype);

  /// Releases the slot and leaves it undefined. The next user of the memory
  /// gets Slot::after.
  void release(Slot& slot);

  /// The streams on which it has allocated, which get memory back: of the
  /// buffer, and of slots outside of it.
  const StreamSet& homes() const {
    return homes_;
  }

 private:
  at::Tensor allocate(int64_t numel, at::ScalarType dtype);

  MemoryLedger& ledger_;
  MemoryPurpose purpose_;
  at::Device device_;
  Memory memory_;
  at::Tensor buffer_; ///< [capacity] uint8; undefined with kEachSlot
  int64_t bytes_of_slots_ = 0; ///< within the arena
  StreamSet homes_;
  OffsetAllocator allocator_{0};
  RangeMarks marks_;
  int live_slots_ = 0;
};

} // namespace tessera::runtime
