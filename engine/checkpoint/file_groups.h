// SPDX-License-Identifier: Apache-2.0
#pragma once
// `FileGroups` holds the communicators to the ranks that have the other parts
// of a model while it is written to or read from files.

#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/comm/parallel_mesh.h"

#include <memory>
#include <string>

namespace tessera::engine {

/// Separate communicators for CPU tensors: whole parameters pass through them,
/// and the small messages of a step must not wait for those.
struct FileGroups {
  /// Collective over the ranks that hold one replica of the model; blocks until
  /// all have called it.
  /// @param key the same on all of them, not used before.
  FileGroups(World& world, const std::string& key, const ParallelMesh& mesh);

  int job_rank;
  int job_size;
  std::unique_ptr<Communicator> tensor; ///< ranks that divide these layers
  std::unique_ptr<Communicator> pipeline; ///< same place, all stages
  /// Ranks that together have all experts; null: experts are not divided.
  std::unique_ptr<Communicator> all_experts;
  int place_in_experts; ///< among the ranks that have the same experts

  /// The ranks that together have all parameters.
  Communicator& whole_model() {
    return all_experts ? *all_experts : *pipeline;
  }
};

} // namespace tessera::engine
