// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShardMesh` says which ranks shard a page's parameters among themselves, and
// which hold the same shard; `PageMeshes` are the meshes of a module's pages.

#include <optional>
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

  /// The mesh of pages of divided experts: every `parts`-th rank has the same
  /// experts, and these ranks shard them; there are no copies.
  /// @param parts of the list of experts; divides `world_size`.
  static ShardMesh of_experts(int rank, int world_size, int parts);

  int shard_rank = 0; ///< which shard this rank holds
  int shard_size = 1; ///< number of shards
  int replica = 0; ///< which replica this rank belongs to
  int replicas = 1; ///< number of replicas
  /// Of divided experts: ranks of another part have other parameters in their
  /// pages of the same number.
  int part = 0;
  int parts = 1;
  std::vector<int> shard_group; ///< ranks of this replica, ascending
  std::vector<int> replicate_group; ///< ranks that hold this shard, ascending

  bool operator==(const ShardMesh&) const = default;

 private:
  ShardMesh() = default;
};

struct PageMeshes {
  // Implicit: most modules have no divided experts.
  PageMeshes(ShardMesh all, std::optional<ShardMesh> of_experts = std::nullopt);

  ShardMesh module; ///< of all pages but those of divided experts
  std::optional<ShardMesh> experts; ///< unset: experts are not divided
};

} // namespace tessera::sharding
