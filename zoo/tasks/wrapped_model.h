// SPDX-License-Identifier: Apache-2.0
#pragma once
// wrap_model() gives the model of a configuration to an engine; add_lora() adds
// its adapter before.

#include "tessera/engine/engine.h"
#include "tessera/engine/parallel_run.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/zoo/tasks/training_config.h"

#include <memory>

namespace tessera::zoo {

/// Adds the adapter, if the configuration has one, and logs its size.
void add_lora(const TrainingConfig& config, const World& world, Model& model);

/// Moves the model to the rank's device and wraps it. Collective.
Engine wrap_model(
    World& world,
    ParallelRun& parallel,
    TrainingConfig& config,
    const std::shared_ptr<Model>& model);

/// Freezes all parameters: the model then needs memory for its weights, and
/// none for gradients and optimizer state. Call it before wrap().
void freeze(const torch::nn::Module& model);

} // namespace tessera::zoo
