// SPDX-License-Identifier: Apache-2.0
#pragma once
// The model of a run: configured_model() constructs it, add_lora() adds its
// adapter, wrap_model() gives it to an engine, export_model() writes it.

#include "tessera/engine/engine.h"
#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/name_patterns.h"
#include "tessera/runtime/core/other_names.h"
#include "tessera/tasks/training_config.h"
#include "tessera/zoo/models/model.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

struct WantedHead;

} // namespace tessera::zoo

namespace tessera::tasks {

/// How the layers of configured_model() are constructed on this rank.
zoo::LayerContext model_context(
    const TrainingConfig& config,
    ParallelRun& parallel);

/// The model of TrainingConfig::model_folder, or of ::model_config with newly
/// initialized weights, which are the same under any layout of ranks. It has no
/// memory until it is wrapped. A head that the folder lacks is newly
/// initialized from the default generator, which ranks must seed alike.
/// @throws tessera::Error as from_pretrained() and from_config().
std::shared_ptr<zoo::Model> configured_model(
    const TrainingConfig& config,
    ParallelRun& parallel);

/// FromPretrainedOptions::unties for the adapter, if there is one.
std::function<bool(const zoo::TiedHead&)> unties_of(
    const TrainingConfig& config);

/// The same of TrainingConfig::model_folder, in a context of one's own.
std::shared_ptr<zoo::Model> pretrained_model(
    const TrainingConfig& config,
    const zoo::LayerContext& context);

/// The same with a head of this kind, which the folder must have.
std::shared_ptr<zoo::Model> pretrained_model(
    const TrainingConfig& config,
    const zoo::LayerContext& context,
    zoo::WantedHead head);

/// Adds the adapter, if the configuration has one, and logs its size.
/// Collective.
void add_lora(const TrainingConfig& config, World& world, zoo::Model& model);

/// Says whose values replace those of weights that were logged as newly
/// initialized, if there are such.
/// @param origin a checkpoint, or the folder of an adapter.
void log_values_of_new_weights(
    const zoo::Model& model,
    const std::filesystem::path& origin);

/// Puts LoRA+'s rates (LoraOptions::lora_plus_ratio) before the rules for
/// parameters.
/// @param model with its adapters, if the configuration has any.
void add_lora_rates(
    const TrainingConfig& config,
    OptimizerOptions& options,
    const zoo::Model& model);

/// Freezes the parameters that `model.train` and `model.freeze` do not leave to
/// be trained.
/// @return the patterns of both keys, which may match parameters of other
///     pipeline stages alone; none without the keys.
/// @throws tessera::Error, of a whole model, if nothing is left or a pattern
///     matches nothing.
std::vector<runtime::NamePatterns> freeze_parameters(
    const TrainingConfig& config,
    const zoo::Model& model);

/// The names that the parameters on this rank have in files of the model, or of
/// its adapter, for EngineOptions::other_names.
OtherNames checkpoint_names(const zoo::Model& model);

/// Moves the model to the rank's device and wraps it. Collective.
Engine wrap_model(
    World& world,
    ParallelRun& parallel,
    TrainingConfig& config,
    const std::shared_ptr<zoo::Model>& model);

/// What the run trains for, where that is not the model's own loss, with the
/// models that it needs beside the trained one; call it before wrap_model(),
/// after the model has got its adapter. Collective.
/// @param make constructs those models.
/// @throws tessera::Error on a model or a layout that does not fit it.
std::unique_ptr<BatchLoss> loss_of_run(
    TrainingConfig& config,
    World& world,
    ParallelRun& parallel,
    const Task& task,
    const MakeFrozenModel& make = pretrained_frozen_model);

/// Freezes all parameters: the model then needs memory for its weights, and
/// none for gradients and optimizer state. Call it before wrap().
void freeze(const torch::nn::Module& model);

/// Where a trained model is written.
struct ExportFolders {
  std::filesystem::path model; ///< for transformers; empty: not written
  std::filesystem::path adapter; ///< for PEFT; empty: not written
  /// The source of the tokenizer if neither the model that training starts from
  /// nor the data have one; empty: there is none.
  std::filesystem::path tokenizer = {};
  /// What an earlier run may have exported and this one does not, which is
  /// removed; empty: nothing is.
  std::filesystem::path outdated = {};

  /// "runs/a/adapter, runs/a/model".
  std::string text() const;
};

/// model/, adapter/ or both in the run folder, as the configuration says.
ExportFolders folders_in_run(const TrainingConfig& config);

/// The averages in the place of the weights, as `training.ema_evaluate` says,
/// while a run is exported and scored; nothing without it. Collective.
/// @throws tessera::Error if the checkpoint that was loaded has none.
std::optional<EmaScope> averages_of_run(
    const TrainingConfig& config,
    Engine& engine);

/// The model gets the tokenizer of model.folder, else that of the data, else
/// that of `folders`. Collective.
void export_model(
    const TrainingConfig& config,
    Engine& engine,
    zoo::Model& model,
    const ExportFolders& folders);

} // namespace tessera::tasks
