// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who has the other parts of a model when it goes to files or comes from them.

#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/comm/parallel_mesh.h"

#include <memory>
#include <string>

namespace tessera {

/// Communicators for tensors on the CPU, of their own: whole parameters pass
/// through them, which the small messages of a step must not wait for.
struct FileGroups {
  /// Collective over the ranks that hold one copy of the model; blocks until
  /// all have called.
  /// @param key the same on all of them, unused before.
  FileGroups(World& world, const std::string& key, const ParallelMesh& mesh);

  int job_rank;
  int job_size;
  std::unique_ptr<Communicator> tensor; ///< divides this stage's layers
  std::unique_ptr<Communicator> pipeline; ///< this place in every stage
};

} // namespace tessera
