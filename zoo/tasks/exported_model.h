// SPDX-License-Identifier: Apache-2.0
#pragma once
// export_model() writes the trained model of a run, its adapter, or both.

#include "tessera/engine/engine.h"
#include "tessera/zoo/tasks/training_config.h"

#include <filesystem>
#include <string>

namespace tessera::zoo {

/// Where a trained model is written.
struct ExportFolders {
  std::filesystem::path model; ///< for transformers; empty: not written
  std::filesystem::path adapter; ///< for PEFT; empty: not written

  /// "runs/a/adapter, runs/a/model".
  std::string text() const;
};

/// model/, adapter/ or both in the run folder, as the configuration says.
ExportFolders folders_in_run(const TrainingConfig& config);

/// Collective.
void export_model(
    const TrainingConfig& config,
    Engine& engine,
    const Model& model,
    const ExportFolders& folders);

} // namespace tessera::zoo
