// SPDX-License-Identifier: Apache-2.0
#pragma once
// `load_optimizer_state()` loads the optimizer state of some parameters of a
// checkpoint.

#include "tessera/engine/checkpoint/checkpoint.h"
#include "tessera/sharding/weights/load_weights.h"

#include <filesystem>

namespace tessera::engine {

/// Loads the state, and the number of updates, of the trained parameters that
/// `report` says were loaded from a checkpoint; its lists `with_state` and
/// `without_state` are filled. State that the checkpoint lacks, and that of
/// user-defined optimizers, stays as it is. The number of steps of the run and
/// the learning rate stay. Collective; blocks on the disk.
/// @param checkpoint see find_checkpoint().
/// @throws tessera::Error on every rank, before any state has changed, if the
///   checkpoint is damaged.
void load_optimizer_state(
    const CheckpointSubject& subject,
    const std::filesystem::path& checkpoint,
    LoadWeightsReport& report);

} // namespace tessera::engine
