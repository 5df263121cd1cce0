// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/shard_mesh.h"
#include "support/expect_error.h"

#include <gtest/gtest.h>

namespace tessera::sharding::shard_mesh_test {

TEST(ShardMesh, NeighboursDivideAndTheirCounterpartsReplicate) {
  const ShardMesh mesh(5, 8, 4);
  EXPECT_EQ(mesh.shard_rank, 1);
  EXPECT_EQ(mesh.shard_size, 4);
  EXPECT_EQ(mesh.replica, 1);
  EXPECT_EQ(mesh.replicas, 2);
  EXPECT_EQ(mesh.shard_group, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(mesh.replicate_group, (std::vector<int>{1, 5}));
}

TEST(ShardMesh, ZeroMeansAllRanks) {
  const ShardMesh mesh(2, 3, 0);
  EXPECT_EQ(mesh.shard_rank, 2);
  EXPECT_EQ(mesh.shard_size, 3);
  EXPECT_EQ(mesh.replicas, 1);
}

TEST(ShardMesh, NamesTheSizesThatWouldDo) {
  expect_error([] { ShardMesh(0, 6, 4); }, {"4", "1, 2, 3, 6"});
}

// 8 ranks with the same layers, neighbors of which have other experts.
TEST(ShardMesh, OfExpertsIsOfTheRanksWithTheSameOnes) {
  const ShardMesh mesh = ShardMesh::of_experts(5, 8, 4);
  EXPECT_EQ(mesh.part, 1);
  EXPECT_EQ(mesh.parts, 4);
  EXPECT_EQ(mesh.shard_rank, 1);
  EXPECT_EQ(mesh.shard_size, 2);
  EXPECT_EQ(mesh.replicas, 1);
  EXPECT_EQ(mesh.shard_group, (std::vector<int>{1, 5}));
  EXPECT_EQ(mesh.replicate_group, (std::vector<int>{5}));
  expect_error(
      [] { ShardMesh::of_experts(0, 6, 4); }, {"over 4 ranks", "the 6 ranks"});
}

} // namespace tessera::sharding::shard_mesh_test
