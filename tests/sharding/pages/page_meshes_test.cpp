// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/page_meshes.h"
#include "support/expect_error.h"
#include "tessera/sharding/tensors/tensor_spec.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera::sharding::page_meshes_test {

namespace {

using Ranks = std::vector<int>;

} // namespace

TEST(MeshOfShards, NeighboursDivideAndTheirCounterpartsReplicate) {
  const DeviceMesh mesh = shard_mesh(5, 8, 4);
  EXPECT_EQ(mesh.index(kShardAxis), 1);
  EXPECT_EQ(mesh.size(kShardAxis), 4);
  EXPECT_EQ(mesh.index(kReplicateAxis), 1);
  EXPECT_EQ(mesh.size(kReplicateAxis), 2);
  EXPECT_EQ(mesh.slice({kShardAxis}).ranks(), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(mesh.slice({kReplicateAxis}).ranks(), (Ranks{1, 5}));
}

TEST(MeshOfShards, ZeroMeansAllRanks) {
  const DeviceMesh mesh = shard_mesh(2, 3, 0);
  EXPECT_EQ(mesh.index(kShardAxis), 2);
  EXPECT_EQ(mesh.size(kShardAxis), 3);
  EXPECT_EQ(mesh.size(kReplicateAxis), 1);
}

TEST(MeshOfShards, NamesTheSizesThatWouldDo) {
  expect_error([] { shard_mesh(0, 6, 4); }, {"4", "1, 2, 3, 6"});
}

// 8 ranks with the same layers, neighbors of which have other experts.
TEST(MeshOfExperts, IsOfTheRanksWithTheSameOnes) {
  const DeviceMesh mesh = expert_mesh(shard_mesh(5, 8, 4), 4);
  EXPECT_EQ(mesh.index(kPartAxis), 1);
  EXPECT_EQ(mesh.size(kPartAxis), 4);
  EXPECT_EQ(mesh.index(kShardAxis), 1);
  EXPECT_EQ(mesh.size(kShardAxis), 2);
  EXPECT_EQ(mesh.size(kReplicateAxis), 1);
  EXPECT_EQ(mesh.slice({kShardAxis}).ranks(), (Ranks{1, 5}));
  expect_error(
      [] { expert_mesh(shard_mesh(0, 6, 0), 4); },
      {"over 4 ranks", "the 6 ranks"});
}

} // namespace tessera::sharding::page_meshes_test
