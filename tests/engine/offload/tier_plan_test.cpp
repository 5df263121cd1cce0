// SPDX-License-Identifier: Apache-2.0
// Where shards go as the budget shrinks: state leaves the device first, then
// gradients, then parameters; to the host, then to files.
#include "tessera/offload/placement/tier_plan.h"

#include "tessera/engine/memory/memory_plan.h"
#include "tessera/engine/memory/tier_needs.h"
#include "tessera/offload/stores/block_pipeline.h"

#include "engine/offload/placement.h"

#include <algorithm>

namespace tessera::engine::tier_plan_test {

namespace {

using namespace tests;
using namespace offload;
using runtime::ShardTiers;

class TierPlanOf : public ::testing::TestWithParam<int> {
 protected:
  TierPlanOf() : net_(make_resting_net(300, 12)) {
    options_ = resting_options(at::kBFloat16);
    options_.sharding.prefetch_depth = 1;
    make_pages();
  }

  void make_pages() {
    pages_ = sharding::plan_pages(
        *net_, pager_options(options_), sharding::shard_mesh(0, GetParam(), 0));
  }

  TierPlan plan(const MemoryBudget& memory) const {
    return plan_tiers(
        tier_needs(pages_, options_.optimizer, pager_options(options_)),
        options_.placement,
        memory,
        options_.offload);
  }
  int64_t least(const ShardTiers& tiers) const {
    return device_needs(
        pages_,
        pager_options(options_),
        std::vector<ShardTiers>(pages_.size(), tiers));
  }

  RestingNet net_;
  EngineOptions options_;
  std::vector<sharding::PageSpec> pages_;
};

int64_t count(
    const std::vector<ShardTiers>& shards,
    MemoryTier ShardTiers::*which,
    MemoryTier tier) {
  return std::count_if(shards.begin(), shards.end(), [&](const auto& of) {
    return of.*which == tier;
  });
}

} // namespace

TEST_P(TierPlanOf, WithoutABudgetEverythingIsOnTheDevice) {
  const TierPlan plan = this->plan({});
  const auto groups = static_cast<int64_t>(pages_.size());
  EXPECT_EQ(
      count(plan.pages, &ShardTiers::parameters, MemoryTier::kDevice), groups);
  EXPECT_EQ(
      count(plan.pages, &ShardTiers::gradients, MemoryTier::kDevice), groups);
  EXPECT_EQ(count(plan.pages, &ShardTiers::state, MemoryTier::kDevice), groups);
}

TEST_P(TierPlanOf, WhatFitsNowhereStays) {
  MemoryBudget memory;
  memory.device_bytes = 1;
  const TierPlan plan = this->plan(memory);
  EXPECT_EQ(
      count(plan.pages, &ShardTiers::state, MemoryTier::kDevice),
      static_cast<int64_t>(pages_.size()));
}

TEST_P(TierPlanOf, AShrinkingDeviceLosesStateThenGradientsThenParameters) {
  MemoryBudget memory;
  memory.host_bytes = int64_t{1} << 30;
  const int64_t all = least({});
  const int64_t without_gradients =
      least({MemoryTier::kDevice, MemoryTier::kHost});
  const int64_t without_both = least({MemoryTier::kHost, MemoryTier::kHost});
  ASSERT_LT(without_gradients, all);
  ASSERT_LT(without_both, without_gradients);

  int64_t gradients_before = 0;
  int64_t parameters_before = 0;
  for (int step = 0; step <= 20; ++step) {
    memory.device_bytes = all - step * (all - without_both) / 20;
    const TierPlan plan = this->plan(memory);
    const int64_t gradients =
        count(plan.pages, &ShardTiers::gradients, MemoryTier::kHost);
    const int64_t parameters =
        count(plan.pages, &ShardTiers::parameters, MemoryTier::kHost);
    EXPECT_GE(gradients, gradients_before);
    EXPECT_GE(parameters, parameters_before);
    EXPECT_EQ(gradients > 0, *memory.device_bytes < all);
    EXPECT_EQ(parameters > 0, *memory.device_bytes < without_gradients);
    // Nothing of the frozen group has a gradient.
    EXPECT_LT(gradients, static_cast<int64_t>(pages_.size()));
    EXPECT_LE(
        device_needs(pages_, pager_options(options_), plan.pages),
        *memory.device_bytes);
    gradients_before = gradients;
    parameters_before = parameters;
  }
  EXPECT_EQ(parameters_before, static_cast<int64_t>(pages_.size()));
}

TEST_P(TierPlanOf, WhatTheHostCannotHoldGoesToFiles) {
  const TemporaryFolder folder;
  MemoryBudget memory;
  memory.device_bytes = least({MemoryTier::kHost, MemoryTier::kHost});
  memory.host_bytes =
      offload::BlockPipeline::staging_bytes() + (int64_t{8} << 20) / GetParam();
  memory.nvme_path = folder.path();
  const TierPlan plan = this->plan(memory);
  EXPECT_GT(count(plan.pages, &ShardTiers::gradients, MemoryTier::kHost), 0);
  EXPECT_GT(count(plan.pages, &ShardTiers::state, MemoryTier::kNvme), 0);
}

TEST_P(TierPlanOf, WhatIsSaidIsDone) {
  const TemporaryFolder folder;
  MemoryBudget memory;
  options_.placement.parameters = MemoryTier::kNvme;
  options_.placement.gradients = MemoryTier::kHost;
  memory.nvme_path = folder.path();
  const TierPlan plan = this->plan(memory);
  const auto groups = static_cast<int64_t>(pages_.size());
  EXPECT_EQ(
      count(plan.pages, &ShardTiers::parameters, MemoryTier::kNvme), groups);
  EXPECT_EQ(
      count(plan.pages, &ShardTiers::gradients, MemoryTier::kHost),
      groups - 1); // a frozen one has none
  EXPECT_EQ(count(plan.pages, &ShardTiers::state, MemoryTier::kDevice), groups);
}

// The first step collects them, on the device.
TEST_P(TierPlanOf, GradientsThatAreAppliedInBackwardAreNotStored) {
  const int64_t with_gradients = least({});
  options_.update_in_backward = true;
  make_pages();
  MemoryBudget memory;
  memory.device_bytes = least({});
  memory.host_bytes = int64_t{1} << 30;
  EXPECT_GE(*memory.device_bytes, with_gradients);
  for (const auto wanted :
       {std::optional<MemoryTier>(), std::optional(MemoryTier::kHost)}) {
    options_.placement.gradients = wanted;
    const TierPlan plan = this->plan(memory);
    const auto groups = static_cast<int64_t>(pages_.size());
    EXPECT_EQ(
        count(plan.pages, &ShardTiers::parameters, MemoryTier::kDevice),
        groups);
    EXPECT_EQ(
        count(plan.pages, &ShardTiers::gradients, MemoryTier::kDevice), groups);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, TierPlanOf, ::testing::Values(1, 2, 5));

} // namespace tessera::engine::tier_plan_test
