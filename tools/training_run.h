// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `tessera train` does for every task.

#include "tessera/engine/trainer/training_task.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/zoo/models/model.h"
#include "tessera/zoo/tasks/training_config.h"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

/// What a configuration says under `task`, without looking at the rest; empty
/// where that is no text.
std::string task_of(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides);

/// Rank 0 makes the run's folder and writes the configuration there.
/// @throws tessera::Error when it cannot be made.
void prepare_run_folder(
    const World& world,
    const std::filesystem::path& folder,
    const nlohmann::ordered_json& resolved);

/// Says who works with whom, where ranks divide the model.
void tell_layout(const World& world, const ParallelRun& parallel);

/// Adds the adapter that is trained in place of the model, where the
/// configuration has one, and says how large it is.
void add_lora(
    const TrainingConfig& config,
    const World& world,
    zoo::Model& model);

/// Writes to the run's folder what was trained: the model for transformers, or
/// the adapter for PEFT. Collective.
void export_model(
    const TrainingConfig& config,
    const World& world,
    Engine& engine,
    const zoo::Model& model);

/// What export_model() writes, for people.
const char* exported_folders(const TrainingConfig& config);

/// "N steps of M texts over R rank(s)".
std::string steps_text(
    const World& world,
    const ParallelRun& parallel,
    const TrainingConfig& config,
    const TrainingTask& task);

} // namespace tessera
