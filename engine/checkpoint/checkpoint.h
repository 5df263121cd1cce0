// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CheckpointSubject` is what a checkpoint contains; `load_checkpoint()` loads
// one on any number of ranks; see [Note: checkpoint folders].

#include "tessera/engine/checkpoint/checkpointable.h"
#include "tessera/engine/optim/loss_scaler.h"
#include "tessera/engine/optim/sharded_optimizer.h"
#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/paging/pager.h"

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::engine {

/// Which run an engine's checkpoints belong to: a new engine begins one, and an
/// engine that loads a checkpoint continues that checkpoint's.
struct CheckpointLineage {
  std::string id; ///< of 16 hexadecimal digits, drawn at random
  bool warned_of_later_steps = false;
};

/// A lineage that no checkpoint has.
CheckpointLineage new_lineage();

/// The contents of a checkpoint.
struct CheckpointSubject {
  sharding::Pager& pager;
  ShardedOptimizer& optimizer;
  torch::nn::Module& module; ///< for its buffers
  Communicator& files; ///< all ranks of the job, for CPU tensors
  LossScaler& scaler;
  CheckpointLineage& lineage;
  std::vector<Checkpointable*> states; ///< the user's objects
};

/// Collective; blocks on the disk.
/// @return the step that was loaded.
int64_t load_checkpoint(
    const CheckpointSubject& subject,
    const std::filesystem::path& path);

} // namespace tessera::engine
