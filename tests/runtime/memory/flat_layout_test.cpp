// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/flat_layout.h"

#include <gtest/gtest.h>

#include <random>

namespace tessera {

TEST(FlatLayout, AlignsStartsAndPadsTheEnd) {
  const FlatLayout layout({17, 1, 0, 33}, 16, 3);
  EXPECT_EQ(layout.offset(0), 0);
  EXPECT_EQ(layout.offset(1), 32);
  EXPECT_EQ(layout.offset(2), 48);
  EXPECT_EQ(layout.offset(3), 48);
  // 96 elements over 3 ranks.
  EXPECT_EQ(layout.shard_numel(), 32);
  EXPECT_EQ(layout.padded_numel(), 96);
  EXPECT_EQ(layout.shard(2).begin, 64);
  EXPECT_EQ(layout.shard(2).end(), 96);
}

TEST(FlatLayout, NothingToLayOut) {
  const FlatLayout layout({}, 16, 4);
  EXPECT_EQ(layout.padded_numel(), 0);
  EXPECT_TRUE(runs_of_shard({}, layout.shard(3)).empty());
}

TEST(FlatLayout, FewerElementsThanRanks) {
  const FlatLayout layout({1}, 16, 4);
  const std::vector<FlatSpan> spans{{0, 1}};
  EXPECT_EQ(runs_of_shard(spans, layout.shard(0)).size(), 1);
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_TRUE(runs_of_shard(spans, layout.shard(rank)).empty());
  }
}

TEST(FlatLayout, RunsOfAllRanksCoverEachElementOnce) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<int64_t> numels(random() % 9);
    for (auto& numel : numels) {
      numel = random() % 4 == 0 ? random() % 3 : random() % 200;
    }
    const int64_t alignment = int64_t{1} << (random() % 6);
    const int shards = 1 + static_cast<int>(random() % 7);
    const FlatLayout layout(numels, alignment, shards);
    EXPECT_EQ(layout.shard_numel() % alignment, 0);
    std::vector<FlatSpan> spans;
    for (size_t i = 0; i < numels.size(); ++i) {
      EXPECT_EQ(layout.offset(i) % alignment, 0);
      if (i > 0) {
        EXPECT_GE(layout.offset(i), spans[i - 1].end());
      }
      spans.push_back({layout.offset(i), numels[i]});
      EXPECT_LE(spans[i].end(), layout.padded_numel());
    }
    std::vector<int> owners(static_cast<size_t>(layout.padded_numel()), 0);
    for (int rank = 0; rank < shards; ++rank) {
      for (const auto& run : runs_of_shard(spans, layout.shard(rank))) {
        EXPECT_GT(run.numel, 0);
        EXPECT_GE(run.shard_offset, 0);
        EXPECT_LE(run.shard_offset + run.numel, layout.shard_numel());
        const int64_t begin = layout.shard(rank).begin + run.shard_offset;
        EXPECT_GE(begin, spans[run.parameter].begin);
        EXPECT_LE(begin + run.numel, spans[run.parameter].end());
        for (int64_t i = 0; i < run.numel; ++i) {
          ++owners[static_cast<size_t>(begin + i)];
        }
      }
    }
    std::vector<int> expected(owners.size(), 0);
    for (const auto& span : spans) {
      for (int64_t i = 0; i < span.numel; ++i) {
        expected[static_cast<size_t>(span.begin + i)] = 1;
      }
    }
    EXPECT_EQ(owners, expected) << "trial " << trial;
    // Padding is less than one step of alignment a tensor and a rank.
    int64_t sum = 0;
    for (const int64_t numel : numels) {
      sum += numel;
    }
    EXPECT_LE(
        layout.padded_numel(),
        sum + alignment * (static_cast<int64_t>(numels.size()) + shards));
  }
}

} // namespace tessera
