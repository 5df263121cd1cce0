// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/parallel_groups.h"
#include "support/expect_error.h"
#include "support/ranks.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace tessera::runtime::parallel_groups_test {

namespace {

ParallelSizes four_ranks() {
  ParallelSizes sizes;
  sizes.tensor = 2;
  sizes.pipeline = 2;
  return sizes;
}

double sum_over(Communicator& group, double value) {
  const at::Tensor tensor = at::full({1}, value, at::kDouble);
  group.all_reduce_sum(tensor, "a test's sum").wait();
  return tensor.item<double>();
}

} // namespace

TEST(ParallelGroups, EachGroupAddsUpItsOwnRanks) {
  tests::run_ranks(4, [](World& world) {
    ParallelGroups groups(
        world, ParallelMesh(four_ranks(), 4, world.local_size()), at::kCPU);
    const double rank = world.rank();
    EXPECT_EQ(
        sum_over(groups[ParallelGroup::kTensor], rank),
        world.rank() < 2 ? 1 : 5);
    EXPECT_EQ(
        sum_over(groups[ParallelGroup::kPipeline], rank),
        world.rank() % 2 == 0 ? 2 : 4);
    EXPECT_EQ(sum_over(groups[ParallelGroup::kOneBatch], rank), 6);
    EXPECT_EQ(groups[ParallelGroup::kShard].size(), 1);
    // The same one again.
    EXPECT_EQ(&groups[ParallelGroup::kTensor], &groups[ParallelGroup::kTensor]);
  });
}

// A stage that asks for groups of its own does not wait for the other stage,
// and two meshes of one job are apart.
TEST(ParallelGroups, StagesAskInTheirOwnOrder) {
  tests::run_ranks(4, [](World& world) {
    const ParallelMesh mesh(four_ranks(), 4, 4);
    ParallelGroups groups(world, mesh, at::kCPU);
    ParallelGroups others(world, mesh, at::kCPU);
    if (world.rank() >= 2) {
      EXPECT_EQ(sum_over(groups[ParallelGroup::kTensor], 1), 2);
      EXPECT_EQ(sum_over(others[ParallelGroup::kTensor], 2), 4);
    }
    EXPECT_EQ(sum_over(groups[ParallelGroup::kPipeline], 1), 2);
    if (world.rank() < 2) {
      EXPECT_EQ(sum_over(others[ParallelGroup::kTensor], 2), 4);
      EXPECT_EQ(sum_over(groups[ParallelGroup::kTensor], 1), 2);
    }
  });
}

TEST(ParallelGroups, AMeshOfAnotherSizeIsRefused) {
  World world(0, 1, 0, nullptr, {});
  expect_error(
      [&] { ParallelGroups(world, ParallelMesh({}, 2, 2), at::kCPU); },
      {"2 ranks", "the job has 1"});
}

TEST(World, KnowsTheRanksOfItsHost) {
  const World world(0, 8, 0, nullptr, {});
  ::unsetenv("LOCAL_WORLD_SIZE");
  EXPECT_EQ(world.local_size(), 8);
  ::setenv("LOCAL_WORLD_SIZE", "4", 1);
  EXPECT_EQ(world.local_size(), 4);
  ::setenv("LOCAL_WORLD_SIZE", "9", 1);
  expect_error(
      [&] { world.local_size(); }, {"LOCAL_WORLD_SIZE", "9", "1 to 8"});
  ::unsetenv("LOCAL_WORLD_SIZE");
}

} // namespace tessera::runtime::parallel_groups_test
