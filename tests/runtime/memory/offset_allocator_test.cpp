// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/offset_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace tessera::runtime::offset_allocator_test {

using End = OffsetAllocator::End;

TEST(OffsetAllocator, TakesTheLowestOrTheHighestRange) {
  OffsetAllocator allocator(10 * 64 + 5);
  EXPECT_EQ(allocator.allocate(64), 0);
  EXPECT_EQ(allocator.allocate(1, End::kHigh), 9 * 64);
  EXPECT_EQ(allocator.allocate(65, End::kHigh), 7 * 64);
  EXPECT_EQ(allocator.allocate(65), 64);
  EXPECT_EQ(allocator.allocate(5 * 64), std::nullopt);
  EXPECT_EQ(allocator.allocate(5 * 64, End::kHigh), std::nullopt);
  allocator.release(7 * 64);
  EXPECT_EQ(allocator.allocate(6 * 64, End::kHigh), 3 * 64);
  EXPECT_EQ(allocator.allocate(1), std::nullopt);
  allocator.release(9 * 64);
  EXPECT_EQ(allocator.allocate(64), 9 * 64);
}

TEST(OffsetAllocator, AChainOfUnequalSizesFitsInItsLargestPair) {
  const std::vector<int64_t> sizes{20, 26, 31, 36, 41, 46, 3, 50, 40, 7};
  int64_t pair = 0;
  for (size_t i = 1; i < sizes.size(); ++i) {
    pair = std::max(pair, 64 * (sizes[i - 1] + sizes[i]));
  }
  OffsetAllocator allocator(pair);
  int64_t previous = -1;
  End end = End::kLow;
  for (const int64_t size : sizes) {
    const auto offset = allocator.allocate(64 * size, end);
    ASSERT_TRUE(offset.has_value()) << size;
    if (previous >= 0) {
      allocator.release(previous);
    }
    previous = *offset;
    end = end == End::kLow ? End::kHigh : End::kLow;
  }
}

TEST(OffsetAllocator, RefusesToReleaseWhatItDidNotGive) {
  OffsetAllocator allocator(128);
  EXPECT_ANY_THROW(allocator.release(0));
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
    const auto offset =
        allocator.allocate(bytes, random() % 2 == 0 ? End::kLow : End::kHigh);
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

} // namespace tessera::runtime::offset_allocator_test
