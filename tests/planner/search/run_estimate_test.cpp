// SPDX-License-Identifier: Apache-2.0
// What runs take is the line through runs with few layers, and takes as few dry
// runs as that needs.
#include "tessera/planner/search/run_estimate.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace tessera::planner::run_estimate_test {

namespace {

constexpr int64_t kLayers = 40;

/// Layers of 10 bytes and 3 seconds, of 8, 7 and 2 bytes with operators,
/// attention or all of them recomputed.
class LinearRuns {
 public:
  PlannedRun run(const RecomputedParts& parts, int64_t layers) {
    ++dry_runs;
    const int64_t others = layers - parts.layers;
    const int64_t kept = parts.attention ? 7 : parts.operators ? 8 : 10;
    const double repeated =
        (parts.operators ? 0.2 : 0) + (parts.attention ? 0.1 : 0);
    PlannedRun run;
    run.stages.resize(1);
    run.recomputed = parts;
    run.device_bytes = 100 + others * kept + parts.layers * 2;
    run.host_bytes = layers;
    run.time.compute = static_cast<double>(layers) * 3 +
                       static_cast<double>(others) * repeated +
                       static_cast<double>(parts.layers);
    run.time.shards = static_cast<double>(layers) * 0.5 + 1;
    return run;
  }

  RunEstimate estimate() {
    return {
        [this](const RecomputedParts& parts, int64_t layers) {
          return run(parts, layers);
        },
        kLayers};
  }

  int64_t dry_runs = 0;
};

} // namespace

TEST(RunEstimate, IsTheLineThroughTwoRuns) {
  LinearRuns runs;
  const auto found = runs.estimate().least(1000);
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->recomputed.any());
  EXPECT_EQ(found->device_bytes, 500);
  EXPECT_EQ(found->bytes_of_layers, 400);
  EXPECT_EQ(found->host_bytes, kLayers);
  EXPECT_DOUBLE_EQ(found->time.compute, 120);
  EXPECT_DOUBLE_EQ(found->time.shards, 21);
  EXPECT_DOUBLE_EQ(found->shards_of_layers, 20);
  EXPECT_EQ(runs.dry_runs, 2);
}

TEST(RunEstimate, RecomputesAsLittleAsFits) {
  LinearRuns runs;
  // 5 layers take 5 s more, all operators 8 s.
  auto found = runs.estimate().least(460);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->recomputed.layers, 5);
  EXPECT_FALSE(found->recomputed.operators);
  EXPECT_EQ(found->device_bytes, 460);
  EXPECT_DOUBLE_EQ(found->time.compute, 125);
  // All operators are faster than 10 layers.
  found = runs.estimate().least(420);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->recomputed.operators);
  EXPECT_EQ(found->recomputed.layers, 0);
}

TEST(RunEstimate, EndsWhereTheSmallestDoesNotFit) {
  LinearRuns runs;
  EXPECT_TRUE(runs.estimate().least(180));
  runs.dry_runs = 0;
  EXPECT_FALSE(runs.estimate().least(179));
  EXPECT_EQ(runs.dry_runs, 4);
}

TEST(RunEstimate, SaysWhyALayoutIsRefused) {
  RunEstimate estimate(
      [](const RecomputedParts& /*parts*/, int64_t /*layers*/) {
        PlannedRun run;
        run.problem = "refused: no";
        return run;
      },
      kLayers);
  EXPECT_EQ(estimate.refusal(), "refused: no");
  EXPECT_FALSE(estimate.least(1000));
}

} // namespace tessera::planner::run_estimate_test
