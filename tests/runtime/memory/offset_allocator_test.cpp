// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/offset_allocator.h"

#include "tessera/runtime/core/error.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace tessera {

TEST(OffsetAllocator, TakesTheLowestGapThatFits) {
  OffsetAllocator allocator(256);
  EXPECT_EQ(allocator.allocate(64), 0);
  EXPECT_EQ(allocator.allocate(100), 64);
  EXPECT_EQ(allocator.allocate(64), 192);
  EXPECT_EQ(allocator.allocate(1), std::nullopt);
  allocator.release(64);
  EXPECT_EQ(allocator.allocate(129), std::nullopt);
  EXPECT_EQ(allocator.allocate(128), 64);
}

TEST(OffsetAllocator, RefusesToReleaseWhatItDidNotGive) {
  OffsetAllocator allocator(256);
  allocator.allocate(64);
  EXPECT_THROW(allocator.release(64), Error);
}

TEST(OffsetAllocator, NeverOverlapsAndNeverLeavesTheBuffer) {
  std::mt19937 random(7);
  OffsetAllocator allocator(4096);
  std::map<int64_t, int64_t> live;
  for (int round = 0; round < 5000; ++round) {
    if (random() % 2 == 0 && !live.empty()) {
      auto chosen = live.begin();
      std::advance(chosen, random() % live.size());
      allocator.release(chosen->first);
      live.erase(chosen);
      continue;
    }
    const auto bytes = static_cast<int64_t>(1 + random() % 700);
    const auto offset = allocator.allocate(bytes);
    if (!offset) {
      continue;
    }
    EXPECT_EQ(*offset % OffsetAllocator::kAlignment, 0);
    EXPECT_LE(*offset + bytes, 4096);
    for (const auto& [begin, size] : live) {
      EXPECT_TRUE(*offset + bytes <= begin || begin + size <= *offset);
    }
    live[*offset] = bytes;
  }
}

} // namespace tessera
