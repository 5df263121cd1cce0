// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which ranks divide the parameters among them, and which hold the same part.

#include <vector>

namespace tessera {

/// Hybrid sharding: `shard_ranks` neighbouring ranks (of one node, say) hold
/// all parameters between them; the job holds them world / shard_ranks times.
/// The axes are those of a DeviceMesh, replicate x shard.
struct ShardMesh {
  /// @param shard_ranks 0: all ranks.
  /// @throws tessera::Error when it does not divide `world_size`, naming the
  ///   numbers that do.
  ShardMesh(int rank, int world_size, int shard_ranks);

  int shard_rank = 0; ///< which part this rank holds
  int shard_size = 1; ///< how many parts there are
  int replica = 0; ///< which copy this rank's part belongs to
  int replicas = 1; ///< how many copies there are
  std::vector<int> shard_group; ///< ranks that hold this copy, ascending
  std::vector<int> replicate_group; ///< ranks that hold this part, ascending
};

} // namespace tessera
