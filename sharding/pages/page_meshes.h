// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PageMeshes` says which ranks divide the pages of a module and hold copies of
// them, and which have the other parts of its model.

#include "tessera/runtime/comm/device_mesh.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/comm/parallel_mesh.h"

#include <torch/nn/module.h>

#include <map>
#include <optional>
#include <string>

namespace tessera::sharding {

/// Axes of the meshes of pages. Every one has "replicate" and kShardAxis.
inline constexpr const char* kReplicateAxis = "replicate";
/// Of pages of divided experts: ranks with other experts have other parameters
/// in their pages of the same number.
inline constexpr const char* kPartAxis = "part";
/// Of a page that several pipeline stages have.
inline constexpr const char* kPipelineAxis = "pipeline";

/// Ranks are numbered as in the job; each mesh is seen by this rank.
struct PageMeshes {
  // Implicit: most jobs have no other meshes.
  PageMeshes(DeviceMesh module);

  /// replicate x shard. The pages of its ranks correspond, and these ranks
  /// agree on what they do.
  DeviceMesh module;
  /// replicate 1 x shard x part: of pages of divided experts. Every part-th
  /// rank has the same experts, and these ranks shard them. Unset: experts are
  /// not divided.
  std::optional<DeviceMesh> experts;
  /// pipeline x replicate x shard, of parameters that several pipeline stages
  /// have, by name.
  std::map<std::string, DeviceMesh> tied;
  /// pipeline x tensor: the ranks that have the other parts of the model; this
  /// rank alone if every rank has all of it.
  DeviceMesh model;
};

/// Hybrid sharding: each group of `shard_ranks` neighboring ranks (of one node,
/// say) holds one replica of all parameters; the job has world_size /
/// shard_ranks replicas.
/// @param shard_ranks 0: all ranks.
/// @throws tessera::Error when `world_size` is not a multiple of it, naming the
///   numbers that are possible.
DeviceMesh shard_mesh(int rank, int world_size, int shard_ranks);

/// The mesh of pages of divided experts, PageMeshes::experts.
/// @param ranks with the same layers.
/// @param parts of the list of experts; divides their number.
DeviceMesh expert_mesh(const DeviceMesh& ranks, int parts);

/// The meshes of a job whose ranks divide a model. Collective over the ranks
/// that hold one copy of the model; blocks until all pipeline stages have
/// called.
/// @throws tessera::Error as find_tied_parameters(), and when mesh and world
///   differ in size.
PageMeshes page_meshes(
    World& world,
    const ParallelMesh& mesh,
    const torch::nn::Module& module);

} // namespace tessera::sharding
