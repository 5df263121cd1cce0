// SPDX-License-Identifier: Apache-2.0
#pragma once
// run_training() is `tessera train`: a whole run, from the configuration to the
// exported and scored model.

#include "tessera/engine/trainer/trainer.h"
#include "tessera/tasks/training_config.h"
#include "tessera/zoo/data/data_set.h"

#include <optional>

namespace tessera::tasks {

struct TrainingResult {
  /// Of TrainingConfig::lr_range_test, which then is all that was done.
  std::optional<LrRangeResult> lr_range;
  /// TrainingSummary::stop_signal is not 0 if SIGINT, SIGTERM or SIGHUP ended
  /// the run, which has then saved a checkpoint and exported nothing.
  TrainingSummary summary;
  /// Of the held-out data, the same on all ranks; nullopt if there is none, or
  /// if the run was stopped or had nothing left to do.
  std::optional<TaskScore> score;
};

/// Joins the job (tessera::init()), constructs the model, opens the data,
/// trains, saves checkpoints, exports the model and scores it:
///
///     const auto result = zoo::run_training(zoo::read_training_config(
///         "train.json", {"training.max_steps=100"}));
///
/// Writes the run folder (config.json, metrics.jsonl, result.json,
/// checkpoints/, model/ or adapter/, ...), whose lock it holds, and reports on
/// standard output. Signals that end a run are handled meanwhile. The
/// model may be one of register_model(), with a head of its own
/// (Model::head()).
///
/// Collective: every rank of the job calls it with the same configuration.
/// Blocks until the run has ended and its files are written, on all ranks. A
/// process may make several runs, one after the other, on the same device.
/// @param config of read_training_config(), whose overrides are the way to
///     change it: TrainingConfig::resolved describes the run to those who
///     resume or score it.
/// @throws tessera::Error if the configuration, the data or the run folder do
///     not allow the run, before anything is written; if training fails; if the
///     model cannot be exported or scored after the checkpoint of the last
///     step: the error says how to go on from there.
TrainingResult run_training(TrainingConfig config);

} // namespace tessera::tasks
