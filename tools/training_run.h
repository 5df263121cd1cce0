// SPDX-License-Identifier: Apache-2.0
#pragma once
// train_task() implements `tessera train` for every task.

#include "task_program.h"

#include "tessera/engine/engine_ref.h"
#include "tessera/engine/parallel_run.h"
#include "tessera/runtime/comm/init.h"

#include <memory>

namespace tessera::tools {

/// Trains, scores and exports; reports in the run folder and on standard
/// output. Collective.
/// @param resolved the whole configuration, defaults included.
void train_task(TaskProgram& program, const nlohmann::ordered_json& resolved);

/// Moves the model to the rank's device and wraps it. Collective.
OwnedEngine wrap_model(
    World& world,
    ParallelRun& parallel,
    zoo::TrainingConfig& config,
    const std::shared_ptr<zoo::Model>& model);

} // namespace tessera::tools
