// SPDX-License-Identifier: Apache-2.0
#pragma once
// evaluate_run() is `tessera eval`: it scores the trained model of a run, or a
// checkpoint.

#include "tessera/zoo/data/data_set.h"

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::tasks {

/// What evaluate_run() checks of overrides before it reads the configuration.
/// @throws tessera::Error as check_chooses_no_checkpoint().
void check_evaluated_overrides(const std::vector<std::string>& overrides);

/// Joins the job (tessera::init()) and scores a model on held-out data. Changes
/// nothing. Collective.
/// @param run a run folder of run_training(), or a configuration file whose
///     model.folder is a trained model.
/// @param overrides `key.path=value` each, of the configuration.
/// @param from a checkpoint of the run to score, as of chosen_checkpoint(), in
///     place of the model that the run has exported; the run need not have
///     finished. Opens the data of the run, too. Empty: the exported model.
/// @return the same on all ranks.
/// @throws tessera::Error if the run has not finished, or if there is nothing
///     to score; as chosen_checkpoint() of `from`, and as run_training() for
///     the rest.
TaskScore evaluate_run(
    const std::filesystem::path& run,
    const std::vector<std::string>& overrides = {},
    const std::string& from = {});

} // namespace tessera::tasks
