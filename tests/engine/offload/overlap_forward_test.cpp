// SPDX-License-Identifier: Apache-2.0
// Updates of groups that are not paged go on during the next forward, on one
// rank and where each of several has everything.
#include "engine/offload/gated_updates.h"
#include "support/ranks.h"

namespace tessera::tests::overlap_forward_test {

namespace {

/// Every rank has all parameters and all state.
EngineOptions unpaged() {
  EngineOptions options;
  options.sharding.shard_ranks = 1;
  return options;
}

} // namespace

class OverlapForward : public ::testing::TestWithParam<int> {};

TEST_P(OverlapForward, RunsWhileUpdatesOfLaterLayersWait) {
  run_ranks(GetParam(), [](World& world) {
    gated_updates::expect_updates_during_forward(world, unpaged());
  });
}

TEST_P(OverlapForward, RoundsTheWeightsThatOperatorsWaitFor) {
  run_ranks(GetParam(), [](World& world) {
    EngineOptions options = unpaged();
    options.precision.parameters = at::kBFloat16;
    gated_updates::expect_updates_during_forward(world, options);
  });
}

TEST_P(OverlapForward, ReadersOutsideOfStepsWait) {
  run_ranks(GetParam(), [](World& world) {
    gated_updates::expect_readers_wait(world, unpaged());
  });
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    OverlapForward,
    ::testing::Values(1, 2),
    ::testing::PrintToStringParamName());

TEST(OverlapFailures, OfUpdatesReachTheForwardThatNeedsThem) {
  run_ranks(1, [](World& world) {
    gated_updates::expect_failures_reach_the_forward(world, unpaged());
  });
}

} // namespace tessera::tests::overlap_forward_test
