// SPDX-License-Identifier: Apache-2.0
#pragma once
// report_best() says which checkpoint of a run `--from best` is.

#include "tessera/engine/trainer/training_task.h"
#include "tessera/tasks/training_config.h"

#include <filesystem>
#include <string>

namespace tessera::tasks {

/// The held-out data of a run; empty if it has none. Reads the files.
ScoredData scored_data(const TrainingConfig& config);

/// If `from` names the best checkpoint of a run, logs its score, its step and
/// the data that it is of, on rank 0, and warns where the run has gone on
/// without scoring, has had a better score whose checkpoint was not kept, or
/// has other held-out data. Call it on every rank, after tessera::init().
/// @param from as of chosen_checkpoint().
/// @param checkpoint that it is.
/// @throws tessera::Error if it was not the best one when it was saved, or the
///     best by another metric than training.best_metric, if the run scores.
void report_best(
    const TrainingConfig& config,
    const std::string& from,
    const std::filesystem::path& checkpoint);

} // namespace tessera::tasks
