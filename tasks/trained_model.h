// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TrainedModel` is a trained model that is predicted with: that of a run
// folder, or of a Hugging Face folder.

#include "tessera/tasks/training_config.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/models/model.h"

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace tessera::tasks {

/// How the configuration of a run is read for its trained model.
struct TrainedRun {
  std::filesystem::path config;
  /// model.folder is the exported model, or what the adapter was trained on;
  /// the layout of ranks is the default.
  std::vector<std::string> overrides;
  std::filesystem::path adapter; ///< on that model; may be empty
};

/// @param overrides applied after those of the run.
/// @throws tessera::Error as adapted_folder_of().
TrainedRun trained_run(
    const std::filesystem::path& run,
    const std::vector<std::string>& overrides);

struct TrainedModel {
  std::filesystem::path folder; ///< as it was named
  /// Of a Hugging Face folder, the defaults of the task that its head is for.
  /// TrainingConfig::model_folder has the tokenizer.
  TrainingConfig config;
  std::shared_ptr<zoo::Model> model; ///< without memory; see place()
  std::unique_ptr<zoo::Head> head; ///< of the model; null: it has none

  /// Gives the whole model memory on the device. It does not train.
  void place(c10::Device device) const;
};

/// @param folder a run folder of a kind of task that has
///     TaskKind::base_model, or a Hugging Face folder.
/// @param overrides `key.path=value` of the configuration.
/// @throws tessera::Error if there is no trained model.
TrainedModel trained_model(
    const std::filesystem::path& folder,
    const std::vector<std::string>& overrides = {});

} // namespace tessera::tasks
