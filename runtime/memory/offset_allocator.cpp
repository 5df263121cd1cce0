// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/offset_allocator.h"

#include "tessera/runtime/core/error.h"

namespace tessera {

OffsetAllocator::OffsetAllocator(int64_t capacity_bytes)
    : capacity_(capacity_bytes) {}

std::optional<int64_t> OffsetAllocator::allocate(int64_t bytes) {
  const int64_t needed = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  int64_t gap_begin = 0;
  for (const auto& [offset, size] : used_) {
    if (offset - gap_begin >= needed) {
      break;
    }
    gap_begin = offset + size;
  }
  if (capacity_ - gap_begin < needed) {
    return std::nullopt;
  }
  used_.emplace(gap_begin, needed);
  return gap_begin;
}

void OffsetAllocator::release(int64_t offset) {
  TESSERA_CHECK(
      used_.erase(offset) == 1,
      "OffsetAllocator: no range begins at byte ",
      offset);
}

} // namespace tessera
