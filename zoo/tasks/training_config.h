// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TrainingConfig` holds the configuration that all tasks of `tessera train`
// share.

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

namespace tessera::runtime {

class ConfigReader;

} // namespace tessera::runtime

namespace tessera {}

namespace tessera::zoo {

/// Paths are relative to the working directory.
struct TrainingConfig {
  /// A Hugging Face folder whose weights training starts from; may be empty.
  std::filesystem::path model_folder;
  /// Instead of model_folder, for tasks that call read_model_source(): a
  /// config.json whose model has newly initialized weights.
  std::filesystem::path model_config;
  std::string architecture; ///< overrides config.json's
  bool strict = true; ///< see FromPretrainedOptions::strict
  std::vector<std::string> classes; ///< names; override config.json's
  std::string problem_type; ///< of a classifier; overrides config.json's
  /// Trains an adapter and what the task adds; nullopt: the whole model.
  std::optional<LoraOptions> lora;
  /// The number of layers recomputed in backward; nullopt: chosen
  /// automatically.
  std::optional<int64_t> checkpoint_layers;
  int64_t batch_size = 16; ///< per rank and micro-batch
  uint64_t seed = 0;
  engine::DeviceOptions device;
  EngineOptions engine; ///< without EngineOptions::parallel
  ParallelOptions parallel;
  TrainerOptions trainer;
  /// A resumed run may have other data than the checkpoint's; it then starts at
  /// their first sample.
  bool new_data = false;
  bool overwrite = false; ///< an earlier run in the run folder
};

/// The tasks of `tessera train`.
enum class TaskKind { kTextClassification, kLanguageModel, kExamples };

/// Opens a configuration with `key.path=value` overrides applied.
/// @throws tessera::Error naming the file or the override.
runtime::ConfigReader open_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides);

/// Call it after everything has been read. @param resolved may be null.
/// @throws tessera::Error on unknown keys, which nothing has read.
void finish_config(
    const runtime::ConfigReader& reader,
    nlohmann::ordered_json* resolved);

/// Reads `task`. @throws tessera::Error if it is not `expected`.
void read_task(const runtime::ConfigReader& reader, TaskKind expected);

/// Reads all keys except those of a task: `device`, `model.folder`, `.lora` and
/// `.checkpoint_layers`, the engine's, `parallel`, `schedule`, `training` and
/// `output`.
/// @throws tessera::Error naming file, path, value and what was expected.
void read_training_config(
    const runtime::ConfigReader& reader,
    TrainingConfig& config);

/// Reads `model.problem_type`: transformers' names, without multi-label for
/// tasks that do not take several labels.
/// @return the given one, or `fallback`.
std::string read_problem_type(
    const runtime::ConfigReader& model,
    bool multi_label,
    const std::string& fallback);

/// Reads `model.config` and `model.architecture`; call it after
/// read_training_config().
/// @throws tessera::Error unless exactly one of `model.folder` and
///     `model.config` is given; on adapters for divided experts.
void read_model_source(
    const runtime::ConfigReader& reader,
    TrainingConfig& config);

} // namespace tessera::zoo
