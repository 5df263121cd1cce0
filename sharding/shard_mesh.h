// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShardMesh` says which ranks shard the parameters among themselves, and which
// hold the same shard.

#include <vector>

namespace tessera::sharding {

/// Hybrid sharding: each group of `shard_ranks` neighboring ranks (of one node,
/// say) holds one replica of all parameters; the job has world_size /
/// shard_ranks replicas. The axes are those of a DeviceMesh, replicate x shard.
struct ShardMesh {
  /// @param shard_ranks 0: all ranks.
  /// @throws tessera::Error when `world_size` is not a multiple of it, naming
  ///   the numbers that are possible.
  ShardMesh(int rank, int world_size, int shard_ranks);

  int shard_rank = 0; ///< which shard this rank holds
  int shard_size = 1; ///< number of shards
  int replica = 0; ///< which replica this rank belongs to
  int replicas = 1; ///< number of replicas
  std::vector<int> shard_group; ///< ranks of this replica, ascending
  std::vector<int> replicate_group; ///< ranks that hold this shard, ascending

  bool operator==(const ShardMesh&) const = default;
};

} // namespace tessera::sharding
