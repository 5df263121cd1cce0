// SPDX-License-Identifier: Apache-2.0
#pragma once
// train_task() implements `tessera train` for every task; `tessera export` and
// `tessera eval` share parts of it.

#include "task_program.h"

#include "tessera/engine/engine_ref.h"
#include "tessera/engine/parallel_run.h"
#include "tessera/runtime/comm/init.h"

#include <filesystem>
#include <memory>
#include <string>

namespace tessera::tools {

/// Trains, saves, exports and scores; reports in the run folder and on standard
/// output. What follows the checkpoint of the last step may fail: the error
/// says how to go on from it. Collective.
/// @param resolved the whole configuration, defaults included.
/// @return the exit code: 128 + signal if SIGINT, SIGTERM or SIGHUP ended the
///     run, which has then saved a checkpoint.
int train_task(TaskProgram& program, const nlohmann::ordered_json& resolved);

/// Adds the adapter, if the configuration has one, and logs its size.
void add_lora(
    const zoo::TrainingConfig& config,
    const World& world,
    zoo::Model& model);

/// Moves the model to the rank's device and wraps it. Collective.
OwnedEngine wrap_model(
    World& world,
    ParallelRun& parallel,
    zoo::TrainingConfig& config,
    const std::shared_ptr<zoo::Model>& model);

/// Where a trained model is written.
struct ExportFolders {
  std::filesystem::path model; ///< for transformers; empty: not written
  std::filesystem::path adapter; ///< for PEFT; empty: not written

  /// "runs/a/adapter, runs/a/model".
  std::string text() const;
};

/// model/, adapter/ or both in the run folder, as the configuration says.
ExportFolders folders_in_run(const zoo::TrainingConfig& config);

/// Collective.
void export_model(
    const zoo::TrainingConfig& config,
    EngineRef engine,
    const zoo::Model& model,
    const ExportFolders& folders);

} // namespace tessera::tools
