// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a configuration file of `tessera train` says.

#include "tessera/engine/device_config.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/parallel_run.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/zoo/tasks/lora_options.h"
#include "tessera/zoo/tasks/text_classification_data.h"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Fine-tuning of a classifier. Paths are relative to the working folder.
struct FinetuneConfig {
  std::filesystem::path model_folder;
  int64_t max_length = 128;
  /// Layers of the encoder that are computed again in backward; not given: the
  /// program's choice.
  std::optional<int64_t> checkpoint_layers;
  /// An adapter is trained, and the head; not given: all of the model.
  std::optional<LoraOptions> lora;
  std::filesystem::path train_file;
  std::filesystem::path heldout_file;
  TextClassificationColumns columns;
  int64_t batch_size = 16; ///< per rank and micro-batch
  uint64_t seed = 0;
  DeviceOptions device;
  EngineOptions engine; ///< without EngineOptions::parallel
  ParallelOptions parallel;
  TrainerOptions trainer;
};

/// Reads a file, applies `key.path=value` overrides and checks everything.
/// @param resolved receives the whole configuration, defaults included.
/// @throws Error naming file, path, value and what was expected.
FinetuneConfig read_finetune_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved);

} // namespace tessera
