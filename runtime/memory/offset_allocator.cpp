// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/offset_allocator.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/round_up.h"

namespace tessera::runtime {

OffsetAllocator::OffsetAllocator(int64_t capacity_bytes)
    : capacity_(capacity_bytes) {}

std::optional<int64_t> OffsetAllocator::find_low(int64_t needed) const {
  int64_t gap_begin = 0;
  for (const auto& [offset, size] : used_) {
    if (offset - gap_begin >= needed) {
      return gap_begin;
    }
    gap_begin = offset + size;
  }
  return capacity_ - gap_begin >= needed ? std::optional(gap_begin)
                                         : std::nullopt;
}

std::optional<int64_t> OffsetAllocator::find_high(int64_t needed) const {
  int64_t gap_end = capacity_ / kAlignment * kAlignment;
  for (auto range = used_.rbegin(); range != used_.rend(); ++range) {
    if (gap_end - (range->first + range->second) >= needed) {
      break;
    }
    gap_end = range->first;
  }
  return gap_end >= needed ? std::optional(gap_end - needed) : std::nullopt;
}

std::optional<int64_t> OffsetAllocator::allocate(int64_t bytes, End end) {
  const int64_t needed = round_up(bytes, kAlignment);
  const auto offset = end == End::kLow ? find_low(needed) : find_high(needed);
  if (offset) {
    used_.emplace(*offset, needed);
  }
  return offset;
}

void OffsetAllocator::release(int64_t offset) {
  TESSERA_CHECK(
      used_.erase(offset) == 1,
      "OffsetAllocator: no range begins at byte {}",
      offset);
}

} // namespace tessera::runtime
