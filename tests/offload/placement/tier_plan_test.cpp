// SPDX-License-Identifier: Apache-2.0
// Where pages of given sizes rest. With the pages of a model:
// tests/engine/offload/tier_plan_test.cpp.
#include "tessera/offload/placement/tier_plan.h"

#include "support/expect_error.h"
#include "tessera/offload/stores/block_pipeline.h"
#include "tessera/offload/updates/staging_buffers.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera::offload::tier_plan_test {

namespace {

constexpr int64_t kMiB = 1 << 20;
/// More than the host has room for where nothing passes through it to files.
constexpr int64_t kPages = 12;

/// Pages with 1 MiB of weights, 1 of gradients and 4 of state each, and nothing
/// else on the device.
TierNeeds equal_pages() {
  TierNeeds needs;
  for (int64_t g = 0; g < kPages; ++g) {
    PageNeeds page;
    page.name = "page " + std::to_string(g);
    page.parameters = kMiB;
    page.gradients = kMiB;
    page.state = 4 * kMiB;
    page.segments = 1;
    page.staged_state = page.state;
    needs.pages.push_back(page);
  }
  needs.device_bytes = [](const std::vector<runtime::ShardTiers>& tiers) {
    int64_t bytes = 0;
    for (const runtime::ShardTiers& of : tiers) {
      bytes += of.parameters == MemoryTier::kDevice ? kMiB : 0;
      bytes += of.gradients == MemoryTier::kDevice ? kMiB : 0;
    }
    return bytes;
  };
  return needs;
}

/// The tiers of the pages' state, as "dhn..".
std::string states(const TierPlan& plan) {
  std::string tiers;
  for (const runtime::ShardTiers& page : plan.pages) {
    tiers += name_of(page.state)[0];
  }
  return tiers;
}

constexpr MemoryTier kDevice = MemoryTier::kDevice;
constexpr MemoryTier kHost = MemoryTier::kHost;

/// Room for all shards and the state of two pages on the device, of two more on
/// the host beside what files pass through.
MemoryBudget room_for_two_each() {
  MemoryBudget memory;
  memory.device_bytes = (2 * kPages + 2 * 4) * kMiB;
  memory.host_bytes = BlockPipeline::staging_bytes() +
                      StagingBuffers::kBuffers * 4 * kMiB + 2 * 4 * kMiB;
  memory.nvme_path = "/scratch";
  return memory;
}

} // namespace

TEST(PlanTiers, StateOfTheFirstPagesIsOnTheDeviceAndOfTheLastInFiles) {
  const TierPlan plan =
      plan_tiers(equal_pages(), {}, room_for_two_each(), {.ratio = 1});
  EXPECT_EQ(states(plan), "ddhhnnnnnnnn");
  EXPECT_FALSE(plan.may_stream);
}

TEST(PlanTiers, BuffersOfStreamedStateComeFirst) {
  const OffloadOptions offload{.ratio = 0, .stage_bytes = kMiB};
  const TierPlan plan =
      plan_tiers(equal_pages(), {}, room_for_two_each(), offload);
  EXPECT_EQ(states(plan), "dhhnnnnnnnnn");
  EXPECT_TRUE(plan.may_stream);
}

TEST(PlanTiers, StateThatIsKeptInMemoryDoesNotRestInFiles) {
  TierNeeds needs = equal_pages();
  for (PageNeeds& page : needs.pages) {
    page.may_rest_in_files = false;
  }
  // On the device, where the error says what is missing.
  EXPECT_EQ(
      states(plan_tiers(needs, {}, room_for_two_each(), {.ratio = 1})),
      "ddhhdddddddd");
  expect_error(
      [&] {
        plan_tiers(
            needs,
            {.optimizer = MemoryTier::kNvme},
            room_for_two_each(),
            {.ratio = 1});
      },
      {"placement.optimizer is nvme", "'page 0'"});
}

TEST(PlanTiers, AsFewPagesAsNecessaryLeaveTheDevice) {
  MemoryBudget memory;
  memory.host_bytes = 1024 * kMiB;
  for (int64_t room = 0; room <= 2 * kPages; ++room) {
    memory.device_bytes = room * kMiB;
    const TierPlan plan = plan_tiers(equal_pages(), {}, memory, {.ratio = 1});
    const int64_t leave = 2 * kPages - room;
    for (int64_t g = 0; g < kPages; ++g) {
      const runtime::ShardTiers& page = plan.pages[static_cast<size_t>(g)];
      EXPECT_EQ(page.gradients, g < leave ? kHost : kDevice) << room;
      EXPECT_EQ(page.parameters, g < leave - kPages ? kHost : kDevice) << room;
    }
  }
}

} // namespace tessera::offload::tier_plan_test
