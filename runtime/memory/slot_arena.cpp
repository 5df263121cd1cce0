// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/slot_arena.h"

#include "tessera/runtime/core/error.h"

namespace tessera {

SlotArena::SlotArena(
    MemoryLedger& ledger,
    MemoryPurpose purpose,
    at::Device device)
    : ledger_(ledger), purpose_(purpose), device_(device) {}

void SlotArena::resize(int64_t capacity_bytes) {
  TESSERA_CHECK(
      live_slots_ == 0,
      "SlotArena: resize with ",
      live_slots_,
      " slots in use");
  // The old buffer goes first, so that both never exist at the same time.
  buffer_ = at::Tensor();
  buffer_ = ledger_.allocate(purpose_, capacity_bytes, at::kByte, device_);
  allocator_ = OffsetAllocator(capacity_bytes);
}

Slot SlotArena::try_allocate(
    int64_t numel,
    at::ScalarType dtype,
    OffsetAllocator::End end) {
  const auto bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  const auto offset = allocator_.allocate(bytes, end);
  if (!offset) {
    return {};
  }
  ++live_slots_;
  return {buffer_.narrow(0, *offset, bytes).view(dtype), *offset};
}

Slot SlotArena::allocate_outside(int64_t numel, at::ScalarType dtype) {
  ++live_slots_;
  return {ledger_.allocate(purpose_, numel, dtype, device_), -1};
}

void SlotArena::release(Slot& slot) {
  if (slot.offset >= 0) {
    allocator_.release(slot.offset);
  }
  slot = {};
  --live_slots_;
}

} // namespace tessera
