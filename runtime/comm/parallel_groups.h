// SPDX-License-Identifier: Apache-2.0
#pragma once
// The communicators of a parallel mesh.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/comm/parallel_mesh.h"

#include <map>
#include <memory>
#include <string>

namespace tessera {

/// Communicators of this rank's groups, each made when it is first asked for
/// and kept. Used by one thread.
class ParallelGroups {
 public:
  /// Collective over the job: every rank calls it in the same order among its
  /// other communicators. Does not block.
  /// @param world outlives this.
  /// @param device where the tensors are.
  /// @throws tessera::Error when the mesh is of another size than the world.
  ParallelGroups(World& world, ParallelMesh mesh, at::Device device);

  const ParallelMesh& mesh() const {
    return mesh_;
  }

  /// The communicator of this rank's group. The first call is collective over
  /// the group and blocks until all of its ranks have called; ranks outside of
  /// it take no part, so pipeline stages may ask at different times. Ranks that
  /// share several groups ask for them in the same order.
  Communicator& operator[](ParallelGroup group);

 private:
  World& world_;
  ParallelMesh mesh_;
  at::Device device_;
  std::string name_;
  std::map<ParallelGroup, std::unique_ptr<Communicator>> made_;
};

} // namespace tessera
