// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/parallel_groups.h"

#include "tessera/runtime/core/error.h"

#include <utility>

namespace tessera {

ParallelGroups::ParallelGroups(
    World& world,
    ParallelMesh mesh,
    at::Device device)
    : world_(world),
      mesh_(std::move(mesh)),
      device_(device),
      name_(world.unique_name("mesh")) {
  TESSERA_CHECK(
      mesh_.world_size() == world.size(),
      "the parallel mesh is for {} ranks, but the job has {}.",
      mesh_.world_size(),
      world.size());
}

Communicator& ParallelGroups::operator[](ParallelGroup group) {
  std::unique_ptr<Communicator>& made = made_[group];
  if (!made) {
    made = world_.join_group(
        name_of(group),
        name_ + "/" + name_of(group),
        device_,
        mesh_.ranks(group, world_.rank()));
  }
  return *made;
}

} // namespace tessera
