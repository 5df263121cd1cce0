// SPDX-License-Identifier: Apache-2.0
#pragma once
// `plan_training()` says what memory a run of `tessera train` takes, from its
// configuration and the model's config.json alone.

#include "tessera/planner/simulated_rank.h"
#include "tessera/planner/step_plan.h"
#include "tessera/tasks/training_config.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::tasks {

/// What of a model's layers a search of plans has to know.
struct ModelLayers {
  int64_t count = 0; ///< 0: the model has none that can be told
  /// All are alike, config.json has one number of them, and nothing else of the
  /// run depends on it.
  bool are_alike = false;
  /// Plans of models with fewer layers say what a layer adds: layers are alike,
  /// and large enough not to be merged into groups (GroupPolicy), of which
  /// memory is no sum over layers.
  bool can_be_fewer = false;
  /// What is learned from a step's examples does not depend on which of them
  /// share a micro-batch, as it does where two views of images are compared
  /// with those of others, or normalized by statistics of the micro-batch.
  bool have_independent_rows = true;
  bool have_experts = false; ///< which ranks may divide
  /// Layers can be recomputed as a whole (`model.checkpoint_layers`): not those
  /// with router losses, which need what all of them kept.
  bool can_be_recomputed = true;
};

/// Reads config.json; the model is made once, without memory.
ModelLayers model_layers(const TrainingConfig& config);

/// What a plan takes for granted so that less is run.
struct PlanReduction {
  /// Plans a model that has so many layers in place of its own;
  /// ModelLayers::can_be_fewer. Nothing: its own.
  std::optional<int64_t> layers;
  /// Runs so many micro-batches of a step, which others are like; nothing: all.
  std::optional<int64_t> accumulate;
  /// Of pipeline stages in a row that have the same number of layers, which
  /// have to be alike (ModelLayers::are_alike), only the first is run, which
  /// takes the most memory. Its plan is that of the others too. Not with
  /// PipelineScheduleKind::kZeroBubble, where later ones take more.
  bool alike_stages_once = false;
};

/// Tokens of a micro-batch of a rank, as it is planned; of images their number.
int64_t planned_tokens(const TrainingConfig& config);

/// Plans a step of the run that `config` describes, on `world_size` ranks:
/// batches of training.batch_size examples of model.max_length tokens, with the
/// teacher or the reference that it runs beside the model. Reads config.json
/// (of model.config, or in model.folder, and of that other model) and neither
/// weights nor data, which need not be there. model.checkpoint_layers has to be
/// given where layers are to be recomputed.
///
/// Steps of a run may differ (model.layer_drop, model.token_drop,
/// training.curriculum): memory is that of those that take the most, and work
/// that of late ones, expected where it is random. Collectives are those of all
/// layers.
/// @param rank one of the pipeline's ranks.
/// @param device of the run; see PlannedJob::device.
/// @return by pipeline stage, as plan_stages().
/// @throws tessera::Error as plan_stages().
std::vector<StepMemoryPlan> plan_training(
    const TrainingConfig& config,
    int world_size,
    int rank = 0,
    c10::DeviceType device = c10::kCPU,
    const PlanReduction& reduction = {});

/// Trains rank `rank` of the run that `config` describes, with newly
/// initialized weights and random tokens, in batches as in plan_training(); see
/// simulate_rank(). Joins a job of one rank (tessera::init()) on the
/// configuration's device.
/// @param steps of it.
/// @param settings without SimulationOptions::init, which follows from the
///   configuration.
SimulatedRun simulate_training(
    const TrainingConfig& config,
    int world_size,
    int rank,
    int steps,
    SimulationOptions settings);

} // namespace tessera::tasks
