// SPDX-License-Identifier: Apache-2.0
#pragma once
// `changes_between()` compares a run that resumes with the run that saved its
// checkpoint.

#include "tessera/tasks/training_config.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace tessera::tasks {

/// What is saved with each checkpoint of `tessera train` (see
/// TrainerOptions::description): {"config": the whole configuration, "model":
/// config.json of the model, "data": data_identity()}.
nlohmann::json describe_run(const TrainingConfig& config);

/// Differences as "optimizer.lr 0.01 -> 0.001". What does not change what is
/// trained, such as the number of ranks, is among `accepted`, too.
struct RunChanges {
  std::vector<std::string> refused; ///< what the checkpoint cannot mean
  std::vector<std::string> data; ///< other training data
  std::vector<std::string> accepted;
};

/// @param saved, now of describe_run().
RunChanges changes_between(
    const nlohmann::json& saved,
    const nlohmann::json& now);

} // namespace tessera::tasks
