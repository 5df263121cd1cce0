// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/training_search.h"

#include "tessera/tasks/plan_training.h"
#include "tessera/tasks/training_config.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tasks {

namespace {

planner::RunSettings settings_of(
    TrainingConfig config,
    const ModelLayers& layers) {
  planner::RunSettings settings;
  settings.engine = config.engine;
  settings.parallel = config.parallel;
  settings.batch_size = config.batch_size;
  settings.accumulate = config.trainer.accumulate;
  settings.recomputed = {
      .layers = config.checkpoint_layers.value_or(0),
      .operators = config.engine.recompute_operators,
      .attention = config.checkpoint_attention,
      .divided_inputs = config.divide_checkpoints};
  settings.tokens = planned_tokens(config);
  settings.max_length = config.max_length;
  settings.layers = layers.count;
  settings.has_alike_layers = layers.are_alike;
  settings.can_plan_fewer_layers = layers.can_be_fewer;
  settings.changes_rows = layers.have_independent_rows;
  settings.has_experts = layers.have_experts;
  settings.recomputes_layers = layers.can_be_recomputed;
  settings.plan =
      [shared_config =
           std::make_shared<const TrainingConfig>(std::move(config))](
          const planner::Machine& machine, const planner::SettingsRun& run) {
        return plan_training(
            *shared_config,
            machine.devices,
            /*rank=*/0,
            machine.device,
            {.layers = run.layers,
             .accumulate = run.accumulate,
             .alike_stages_once = run.alike_stages_once});
      };
  return settings;
}

} // namespace

planner::ReadRun read_training_run(const std::filesystem::path& config) {
  return [config, layers = std::make_shared<std::optional<ModelLayers>>()](
             const std::vector<std::string>& overrides) {
    TrainingConfig settled = read_training_config(
        config, overrides, nullptr, HubFiles::kDescriptions);
    if (!*layers) {
      *layers = model_layers(settled); // the same whatever a search sets
    }
    return settings_of(std::move(settled), **layers);
  };
}

} // namespace tessera::tasks
