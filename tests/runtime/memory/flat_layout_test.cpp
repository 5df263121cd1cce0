// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/flat_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tessera::runtime::flat_layout_test {

TEST(FlatLayout, AlignsStartsAndPadsToEqualShards) {
  const FlatLayout layout({5, 17, 1}, 16, 3);
  EXPECT_EQ(layout.offset(0), 0);
  EXPECT_EQ(layout.offset(1), 16);
  EXPECT_EQ(layout.offset(2), 48);
  // 64 elements over 3 ranks: 22, aligned to 32.
  EXPECT_EQ(layout.shard_numel(), 32);
  EXPECT_EQ(layout.padded_numel(), 96);
}

TEST(FlatLayout, RunsOfAllRanksCoverEveryElementOnce) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 5);
    const int64_t alignment = int64_t{1} << (random() % 5);
    std::vector<int64_t> numels(1 + random() % 6);
    for (auto& numel : numels) {
      numel = static_cast<int64_t>(random() % 70);
    }
    const FlatLayout layout(numels, alignment, ranks);
    std::vector<FlatSpan> spans;
    for (size_t i = 0; i < numels.size(); ++i) {
      EXPECT_EQ(layout.offset(i) % alignment, 0);
      spans.push_back({layout.offset(i), numels[i]});
    }
    std::vector<int> covered(layout.padded_numel(), 0);
    std::vector<int64_t> per_parameter(numels.size(), 0);
    for (int rank = 0; rank < ranks; ++rank) {
      const FlatSpan shard = layout.shard(rank);
      for (const FlatSegment& run : segments_of_shard(spans, shard)) {
        EXPECT_GT(run.numel, 0);
        EXPECT_LE(run.shard_offset + run.numel, shard.numel);
        per_parameter[run.parameter] += run.numel;
        for (int64_t i = 0; i < run.numel; ++i) {
          const int64_t at = shard.begin + run.shard_offset + i;
          EXPECT_GE(at, spans[run.parameter].begin);
          EXPECT_LT(at, spans[run.parameter].end());
          ++covered[at];
        }
      }
    }
    EXPECT_EQ(per_parameter, numels);
    for (const int times : covered) {
      EXPECT_LE(times, 1);
    }
  }
}

TEST(FlatLayout, ABufferOfTensorsWithoutElementsIsNotEmpty) {
  for (const int shards : {1, 2, 3}) {
    const FlatLayout layout({0, 0}, 16, shards);
    EXPECT_EQ(layout.shard_numel(), 16);
    EXPECT_EQ(layout.padded_numel(), 16 * shards);
  }
}

TEST(FlatLayout, GapsAreWhatNoSpanCovers) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    const auto numel = static_cast<int64_t>(1 + random() % 400);
    std::vector<FlatSpan> spans(random() % 40);
    std::vector<bool> covered(numel, false);
    for (auto& span : spans) {
      // Of few starts, so that many spans, empty ones too, share theirs.
      span.begin = static_cast<int64_t>(random() % 10) * numel / 10;
      span.numel = static_cast<int64_t>(random() % 3) * numel / 25;
      span.numel = std::min(span.numel, numel - span.begin);
      std::fill_n(covered.begin() + span.begin, span.numel, true);
    }
    int64_t end = 0;
    for (const FlatSpan& gap : gaps_between(spans, numel)) {
      EXPECT_GT(gap.numel, 0);
      EXPECT_GE(gap.begin, end);
      end = gap.end();
      for (int64_t i = gap.begin; i < gap.end(); ++i) {
        EXPECT_FALSE(covered[i]) << "round " << round;
        covered[i] = true;
      }
    }
    EXPECT_EQ(std::count(covered.begin(), covered.end(), false), 0);
  }
}

} // namespace tessera::runtime::flat_layout_test
