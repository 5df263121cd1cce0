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
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::runtime {

class ConfigReader;
class OptionFields;

} // namespace tessera::runtime

namespace tessera::zoo {

/// Paths are relative to the working directory.
struct TrainingConfig {
  /// A Hugging Face folder whose weights training starts from; may be empty.
  std::filesystem::path model_folder;
  /// Instead of model_folder, for tasks that have visit_model_source(): a
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

const std::vector<std::pair<std::string, TaskKind>>& task_names();

/// Call it after everything has been read. @param resolved may be null.
/// @throws tessera::Error on unknown keys, which nothing has read.
void finish_config(
    const runtime::ConfigReader& reader,
    nlohmann::ordered_json* resolved);

/// Reads `task`. @throws tessera::Error if it is not `expected`.
void read_task(const runtime::ConfigReader& reader, TaskKind expected);

/// The fields of all tasks: `task`, the device, `model`, the engine's,
/// `parallel`, `schedule`, `training` and `output`.
/// @param model shows the task's own fields of the section `model`.
void visit_training_fields(
    runtime::OptionFields& fields,
    TrainingConfig& config,
    TaskKind task,
    const std::function<void()>& model);

/// `model.config` and `model.architecture`.
void visit_model_source(runtime::OptionFields& fields, TrainingConfig& config);

/// Names of transformers for `model.problem_type`.
std::vector<std::pair<std::string, std::optional<std::string>>> problem_types(
    bool multi_label);

/// Completes what has been read: run folders stand for their models.
/// @throws tessera::Error naming file, path, value and what was expected, where
///   fields contradict each other.
void finish_training_config(
    const runtime::ConfigReader& reader,
    TrainingConfig& config);

/// @throws tessera::Error unless exactly one of `model.folder` and
///     `model.config` is given; on adapters without existing weights.
void check_model_source(
    const runtime::ConfigReader& reader,
    const TrainingConfig& config);

} // namespace tessera::zoo
