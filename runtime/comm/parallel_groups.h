// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ParallelGroups` makes and keeps the communicators of a `ParallelMesh`.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/comm/parallel_mesh.h"

#include <map>
#include <memory>
#include <string>

namespace tessera {

/// Communicators of this rank's groups, each made on first use. Not
/// thread-safe.
class ParallelGroups {
 public:
  /// Collective over the job: every rank calls it, in the same order relative
  /// to its other communicators. Does not block.
  /// @param world must outlive this object.
  /// @param device where the tensors are.
  /// @throws tessera::Error when the mesh and the world differ in size.
  ParallelGroups(World& world, ParallelMesh mesh, at::Device device);

  const ParallelMesh& mesh() const {
    return mesh_;
  }

  /// Returns the communicator of this rank's group. The first call is
  /// collective over the group and blocks until all of its ranks have called;
  /// other ranks do not take part, so pipeline stages may call it at different
  /// times. Ranks that share several groups must request them in the same
  /// order.
  Communicator& operator[](ParallelGroup group);

 private:
  World& world_;
  ParallelMesh mesh_;
  at::Device device_;
  std::string name_;
  std::map<ParallelGroup, std::unique_ptr<Communicator>> made_;
};

} // namespace tessera
