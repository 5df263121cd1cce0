// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/slot_arena.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/tensor_bytes.h"

namespace tessera::runtime {

SlotArena::SlotArena(
    MemoryLedger& ledger,
    MemoryPurpose purpose,
    at::Device device,
    Memory memory)
    : ledger_(ledger), purpose_(purpose), device_(device), memory_(memory) {}

int64_t SlotArena::allocated_bytes() const {
  return memory_ == Memory::kEachSlot ? bytes_of_slots_ : capacity_bytes();
}

void SlotArena::resize(int64_t capacity_bytes) {
  TESSERA_CHECK(
      live_slots_ == 0, "SlotArena: resize with {} slots in use", live_slots_);
  // Frees the old buffer first, so that both never exist at the same time. The
  // stream that made it may reuse its memory next without waiting, so it waits
  // here.
  homes_.block(marks_.marks_of(0, this->capacity_bytes()));
  buffer_ = at::Tensor();
  if (memory_ == Memory::kOneBuffer) {
    buffer_ = allocate(capacity_bytes, at::kByte);
  }
  allocator_ = OffsetAllocator(capacity_bytes);
  marks_ = {};
  marks_.leave(0, capacity_bytes, mark_current(device_));
}

Slot SlotArena::try_allocate(
    int64_t numel,
    at::ScalarType dtype,
    OffsetAllocator::End end) {
  const auto bytes = bytes_of(numel, dtype);
  const auto offset = allocator_.allocate(bytes, end);
  if (!offset) {
    return {};
  }
  ++live_slots_;
  bytes_of_slots_ += bytes;
  return {
      memory_ == Memory::kEachSlot
          ? allocate(numel, dtype)
          : buffer_.narrow(0, *offset, bytes).view(dtype),
      *offset,
      marks_.marks_of(*offset, *offset + bytes)};
}

Slot SlotArena::allocate_outside(int64_t numel, at::ScalarType dtype) {
  ++live_slots_;
  return {allocate(numel, dtype), -1, mark_current(device_)};
}

at::Tensor SlotArena::allocate(int64_t numel, at::ScalarType dtype) {
  if (const auto stream = current_stream(device_)) {
    homes_.insert(*stream);
  }
  return ledger_.allocate(purpose_, numel, dtype, device_);
}

void SlotArena::release(Slot& slot) {
  if (slot.offset >= 0) {
    allocator_.release(slot.offset);
    bytes_of_slots_ -= static_cast<int64_t>(slot.tensor.nbytes());
    marks_.leave(
        slot.offset,
        slot.offset + static_cast<int64_t>(slot.tensor.nbytes()),
        slot.after);
  } else {
    homes_.block(slot.after); // as in resize()
  }
  slot = {};
  --live_slots_;
}

} // namespace tessera::runtime
