// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TrainingConfig` is the configuration of `tessera train`.

#include "tessera/engine/data/data_loader.h"
#include "tessera/engine/device_config.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/engine/trainer/lr_range_test.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/tasks/distillation.h"
#include "tessera/tasks/sequence_curriculum.h"
#include "tessera/tasks/task.h"
#include "tessera/zoo/adapters/lora_config.h"
#include "tessera/zoo/heads/classification.h"
#include "tessera/zoo/models/recomputation.h"
#include "tessera/zoo/models/step_drops.h"

#include <nlohmann/json.hpp>

#include <any>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tasks {

/// The section `model.lora`.
struct LoraOptions {
  zoo::LoraConfig adapter;
  double lora_plus_ratio = 1; ///< see zoo::lora_plus_rules()
  /// Also exports the model with the adapter merged into it.
  bool merge = false;
};

void visit_fields(runtime::OptionFields& fields, LoraOptions& options);

/// The section `model.start_from`: weights of another model.
struct StartOptions {
  std::filesystem::path path; ///< see load_weights_of()
  LoadWeightsOptions weights{.strict = false};
};

void visit_fields(runtime::OptionFields& fields, StartOptions& options);

/// Where data are: files of rows by name or pattern (see matching_files()), or
/// one file or folder.
struct DataFiles {
  std::vector<std::string> train;
  std::vector<std::string> heldout; ///< empty: nothing is scored

  /// The one file, or folder; empty: there is none.
  std::filesystem::path train_path() const {
    return train.empty() ? "" : train.front();
  }
  std::filesystem::path heldout_path() const {
    return heldout.empty() ? "" : heldout.front();
  }
};

/// Which files that are named "hf://..." are fetched.
enum class HubFiles {
  kAll,
  kDescriptions, ///< not weights and data: for plans
  kNone, ///< for checks: names are only read
  kNoneOfDescriptions, ///< for checks of plans
};

inline bool are_fetched(HubFiles files) {
  return files == HubFiles::kAll || files == HubFiles::kDescriptions;
}
/// Whether weights and data are needed, at last.
inline bool are_for_training(HubFiles files) {
  return files == HubFiles::kAll || files == HubFiles::kNone;
}

/// What all kinds of tasks have, and the options of one. Paths are relative to
/// the working directory; see resolve_config_paths().
struct TrainingConfig {
  /// Clipping and a warm-up are on by default, other than in TrainerOptions.
  explicit TrainingConfig(const TaskKind& kind);

  const TaskKind* task;
  std::any task_options; ///< TaskKind::options, as read
  /// A Hugging Face folder whose weights training starts from; may be empty.
  std::filesystem::path model_folder;
  /// Instead of model_folder: a config.json whose model has newly initialized
  /// weights.
  std::filesystem::path model_config;
  std::string architecture; ///< overrides config.json's
  bool strict = true; ///< see FromPretrainedOptions::strict
  /// Loaded into the model before the first step; a resumed run does not.
  std::optional<StartOptions> start_from;
  std::vector<std::string> classes; ///< names; override config.json's
  zoo::ClassOrder class_order = zoo::ClassOrder::kAsGiven; ///< of `classes`
  std::string problem_type; ///< of a classifier; overrides config.json's
  int64_t max_length; ///< of texts, in tokens
  /// Trains an adapter and what the task adds; nullopt: the whole model.
  std::optional<LoraOptions> lora;
  /// Regular expressions for names of parameters, of the model or its files:
  /// only those that `trained` matches are trained, if it is not empty, and of
  /// them not those that `frozen` matches.
  std::vector<std::string> trained;
  std::vector<std::string> frozen;
  /// The number of layers recomputed in backward; nullopt: chosen
  /// automatically.
  std::optional<int64_t> checkpoint_layers;
  bool checkpoint_attention = false; ///< Recomputation::attention
  bool divide_checkpoints = false; ///< Recomputation::divide_inputs
  std::optional<zoo::LayerDropOptions>
      layer_drop; ///< nullopt: all layers are run
  std::optional<zoo::TokenDropOptions> token_drop; ///< nullopt: on all tokens

  DataFiles data;
  std::optional<CurriculumOptions> curriculum;
  /// Instead of a run, a test of learning rates.
  std::optional<LrRangeOptions> lr_range_test;
  /// Also trains on the outputs of a teacher; nullopt: there is none.
  std::optional<DistillationOptions> distill;
  DataLoaderOptions loader; ///< of training data

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
  bool has_default_rate = true; ///< optimizer.lr is not given
  LossMean loss_mean = LossMean::kLabels;

  HubFiles hub_files = HubFiles::kAll; ///< that reading has fetched
  /// What was read, defaults included; the config.json of the run folder.
  nlohmann::ordered_json resolved;

  /// The options of the kind of task.
  /// @throws std::bad_any_cast if they are of another kind.
  template <typename Options>
  const Options& as() const {
    return std::any_cast<const Options&>(task_options);
  }
  template <typename Options>
  Options& as() {
    return std::any_cast<Options&>(task_options);
  }
  /// Null if they are of another kind.
  template <typename Options>
  const Options* get_if() const {
    return std::any_cast<Options>(&task_options);
  }

  /// What the model recomputes, if no number of layers is chosen automatically.
  zoo::Recomputation recomputation() const {
    return {
        .layers = checkpoint_layers.value_or(0),
        .attention = checkpoint_attention,
        .divide_inputs = divide_checkpoints};
  }
  /// Whether a classifier predicts numbers instead of classes.
  bool is_regression() const {
    return problem_type == "regression";
  }
  /// All files that are trained on; see TaskKind::data_files.
  std::vector<std::filesystem::path> train_files() const;
  /// All files that are only scored; none if they are a share of the data.
  std::vector<std::filesystem::path> heldout_files() const;
  /// See TaskKind::tokenizer_of_data; empty also if they are no tokens.
  std::filesystem::path tokenizer_of_data() const;
};

void visit_fields(runtime::OptionFields& fields, TrainingConfig& config);

/// Reads a file, applies `key.path=value` overrides and validates everything.
/// Paths in the file are relative to its folder, those of overrides to the
/// working directory; see resolve_config_paths().
/// @param kind the only one that the caller is for; null: any.
/// @throws tessera::Error naming file, path, value and what was expected.
TrainingConfig read_training_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides = {},
    const TaskKind* kind = nullptr,
    HubFiles hub_files = HubFiles::kAll);

/// The same of a configuration that is not a file.
TrainingConfig read_training_config(
    const runtime::ConfigReader& reader,
    const TaskKind* kind = nullptr,
    HubFiles hub_files = HubFiles::kAll);

/// What tasks on files of rows have in common: a model to start from, files
/// with names, batches padded to their longest text.
/// @throws tessera::Error without `model.folder`.
void finish_text_files(
    const runtime::ConfigReader& reader,
    TrainingConfig& config);

/// `model.config` and `model.architecture`, of kinds whose models may be newly
/// initialized.
void visit_model_source(runtime::OptionFields& fields, TrainingConfig& config);

/// @throws tessera::Error unless exactly one of `model.folder` and
///     `model.config` is given; on adapters without existing weights.
void check_model_source(
    const runtime::ConfigReader& reader,
    const TrainingConfig& config);

/// A key of one file or folder.
void visit_path(
    runtime::OptionFields& fields,
    const runtime::OptionKey& key,
    std::vector<std::string>& names,
    const char* doc);

/// TaskKind::data_files of tasks whose data are one file or folder.
std::vector<std::filesystem::path> one_path(
    const TrainingConfig& config,
    const std::vector<std::string>& names);

/// `model.problem_type`.
void visit_problem_type(
    runtime::OptionFields& fields,
    TrainingConfig& config,
    const std::vector<std::string>& types,
    const char* doc);

} // namespace tessera::tasks
