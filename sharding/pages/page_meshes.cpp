// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/page_meshes.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/pages/tied_parameters.h"
#include "tessera/sharding/tensors/dim_split.h"
#include "tessera/sharding/tensors/tensor_spec.h"

#include <utility>
#include <vector>

namespace tessera::sharding {

namespace {

/// The mesh of the pages of one parameter that several pipeline stages have.
/// @param stages of each of them, the rank that corresponds to this one.
DeviceMesh tied_mesh(
    const ParallelMesh& mesh,
    const DeviceMesh& module,
    const std::vector<int>& stages) {
  std::vector<MeshAxis> axes = module.axes();
  axes.insert(axes.begin(), {kPipelineAxis, static_cast<int>(stages.size())});
  std::vector<int> ranks;
  for (const int of_stage : stages) {
    const std::vector<int> same_layers =
        mesh.ranks(ParallelGroup::kGradients, of_stage);
    ranks.insert(ranks.end(), same_layers.begin(), same_layers.end());
  }
  return {std::move(axes), std::move(ranks), module.rank()};
}

} // namespace

PageMeshes::PageMeshes(DeviceMesh module)
    : module(std::move(module)),
      model(
          {{kPipelineAxis, 1}, {kTensorAxis, 1}},
          std::vector<int>{this->module.rank()},
          this->module.rank()) {}

DeviceMesh shard_mesh(int rank, int world_size, int shard_ranks) {
  const int size = shard_ranks == 0 ? world_size : shard_ranks;
  TESSERA_CHECK(
      size >= 1 && world_size % size == 0,
      "shard_ranks is {}, which does not divide the {} ranks of the job; possible values: {}, or 0 for all.",
      shard_ranks,
      world_size,
      divisors_of(world_size));
  return {
      {{kReplicateAxis, world_size / size}, {kShardAxis, size}},
      world_size,
      rank};
}

DeviceMesh expert_mesh(const DeviceMesh& ranks, int parts) {
  TESSERA_CHECK(
      parts >= 1 && ranks.size() % parts == 0,
      "experts are divided over {} ranks, which does not divide the {} ranks that have the same layers.",
      parts,
      ranks.size());
  return ranks.with_axes(
      {{kReplicateAxis, 1},
       {kShardAxis, ranks.size() / parts},
       {kPartAxis, parts}});
}

PageMeshes page_meshes(
    World& world,
    const ParallelMesh& mesh,
    const torch::nn::Module& module) {
  TESSERA_CHECK(
      mesh.world_size() == world.size(),
      "wrap: the parallel mesh is for {} ranks, but the job has {}.",
      mesh.world_size(),
      world.size());
  const DeviceMesh same_layers =
      mesh.slice(ParallelGroup::kGradients, world.rank());
  const int shards = mesh.size(ParallelGroup::kParameterShards);
  PageMeshes meshes(same_layers.with_axes(
      {{kReplicateAxis, same_layers.size() / shards}, {kShardAxis, shards}}));
  if (const int parts = mesh.size(ParallelGroup::kExpert); parts > 1) {
    meshes.experts = expert_mesh(same_layers, parts);
  }
  meshes.model = mesh.slice(ParallelGroup::kModel, world.rank());
  for (const auto& [name, stages] : find_tied_parameters(
           world, mesh.ranks(ParallelGroup::kPipeline, world.rank()), module)) {
    meshes.tied.emplace(name, tied_mesh(mesh, meshes.module, stages));
  }
  return meshes;
}

} // namespace tessera::sharding
