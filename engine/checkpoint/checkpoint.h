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

/// What a checkpoint is of.
struct CheckpointSubject {
  Pager& pager;
  ShardedOptimizer& optimizer;
  LossScaler& scaler;
  torch::nn::Module& module; ///< for its buffers
  std::vector<Checkpointable*> states; ///< of the user's
  FileGroups* groups; ///< null: every rank has the whole module
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
