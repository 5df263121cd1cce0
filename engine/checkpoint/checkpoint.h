// SPDX-License-Identifier: Apache-2.0
#pragma once
// Saving an engine to a folder and loading it, under any number of ranks. See
// [Note: checkpoint folders]. Engine::save() and Engine::load() call this.

#include "tessera/engine/checkpoint/checkpointable.h"
#include "tessera/engine/loss_scaler.h"
#include "tessera/engine/optim/sharded_optimizer.h"
#include "tessera/sharding/pager.h"

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace tessera {

struct FileGroups;

/// Parameters that one pager divides.
struct CheckpointPart {
  Pager& pager;
  ShardedOptimizer& optimizer;
  torch::nn::Module& module; ///< for its buffers
  FileGroups* groups; ///< null: every rank has the whole module
};

/// What a checkpoint is of.
struct CheckpointSubject {
  /// Together the model; no parameter is in two of them. The steps and the
  /// learning rate are the first one's. Over the ranks of the job, which are
  /// numbered alike in all.
  std::vector<CheckpointPart> parts;
  LossScaler& scaler;
  std::vector<Checkpointable*> states; ///< of the user's
};

/// Collective; blocks on the disk. @return the checkpoint's folder.
std::filesystem::path save_checkpoint(
    const CheckpointSubject& subject,
    const std::filesystem::path& folder,
    int keep_last);

/// Collective; blocks on the disk. @return the step that was loaded.
int64_t load_checkpoint(
    const CheckpointSubject& subject,
    const std::filesystem::path& path);

} // namespace tessera
