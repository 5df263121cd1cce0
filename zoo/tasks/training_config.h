// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the configurations of all tasks of `tessera train` have in common.

#include "tessera/engine/device_config.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/parallel_run.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/zoo/tasks/lora_options.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera {
class ConfigReader;
}

namespace tessera::zoo {

/// Paths are relative to the working folder.
struct TrainingConfig {
  /// A Hugging Face folder whose weights are gone on with; may be empty.
  std::filesystem::path model_folder;
  /// In place of model_folder, for tasks that read_model_source(): a
  /// config.json whose model starts with fresh weights.
  std::filesystem::path model_config;
  std::string architecture; ///< in place of the one that config.json names
  std::vector<std::string> classes; ///< names, in place of config.json's
  /// An adapter is trained, and what the task adds; not given: all of the
  /// model.
  std::optional<LoraOptions> lora;
  /// Layers of the model that are computed again in backward; not given: the
  /// program's choice.
  std::optional<int64_t> checkpoint_layers;
  int64_t batch_size = 16; ///< per rank and micro-batch
  uint64_t seed = 0;
  DeviceOptions device;
  EngineOptions engine; ///< without EngineOptions::parallel
  ParallelOptions parallel;
  TrainerOptions trainer;
};

/// What `tessera train` trains.
enum class TaskKind { kTextClassification, kLanguageModel, kExamples };

/// The file with `key.path=value` overrides applied.
/// @throws tessera::Error naming the file or the override.
ConfigReader open_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides);

/// When all has been read. @param resolved may be null.
/// @throws tessera::Error on keys that nobody has asked for.
void finish_config(
    const ConfigReader& reader,
    nlohmann::ordered_json* resolved);

/// Reads `task`. @throws tessera::Error when it is another one than `expected`.
void read_task(const ConfigReader& reader, TaskKind expected);

/// Reads all keys but those of a task: `device`, `model.folder`, `.lora` and
/// `.checkpoint_layers`, the engine's, `parallel`, `schedule`, `training` and
/// `output`.
/// @throws tessera::Error naming file, path, value and what was expected.
void read_training_config(const ConfigReader& reader, TrainingConfig& config);

/// Reads `model.config` and `model.architecture`, behind
/// read_training_config().
/// @throws tessera::Error unless there is one of `model.folder` and
///     `model.config`; for adapters of divided experts.
void read_model_source(const ConfigReader& reader, TrainingConfig& config);

} // namespace tessera::zoo
