// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/file_groups.h"

namespace tessera::engine {

FileGroups::FileGroups(
    World& world,
    const std::string& key,
    const ParallelMesh& mesh)
    : job_rank(world.rank()),
      job_size(world.size()),
      tensor(world.join_group(
          "files of tensor-parallel ranks",
          key + "/tensor files",
          at::kCPU,
          mesh.ranks(ParallelGroup::kTensor, world.rank()))),
      pipeline(world.join_group(
          "files of pipeline stages",
          key + "/pipeline files",
          at::kCPU,
          mesh.ranks(ParallelGroup::kPipeline, world.rank()))),
      all_experts(
          mesh.size(ParallelGroup::kExpert) == 1
              ? nullptr
              : world.join_group(
                    "files of experts",
                    key + "/expert files",
                    at::kCPU,
                    mesh.ranks(ParallelGroup::kAllExperts, world.rank()))),
      place_in_experts(mesh.index(ParallelGroup::kSameExperts, world.rank())) {}

} // namespace tessera::engine
