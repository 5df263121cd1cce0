// SPDX-License-Identifier: Apache-2.0
#pragma once
// configured_model() constructs the model that a configuration names.

#include "tessera/engine/parallel_run.h"
#include "tessera/zoo/models/model.h"
#include "tessera/zoo/tasks/training_config.h"

#include <memory>

namespace tessera::zoo {

/// The model of TrainingConfig::model_folder, or of ::model_config with newly
/// initialized weights, which are the same under any layout of ranks. It has no
/// memory until it is wrapped. A head that the folder lacks is newly
/// initialized from the default generator, which ranks must seed alike.
/// @throws tessera::Error as zoo::from_pretrained() and zoo::from_config().
std::shared_ptr<zoo::Model> configured_model(
    const TrainingConfig& config,
    ParallelRun& parallel);

} // namespace tessera::zoo
