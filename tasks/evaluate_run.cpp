// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/evaluate_run.h"

#include "tessera/engine/trainer/run_checkpoints.h"
#include "tessera/runtime/core/error.h"
#include "tessera/tasks/best_checkpoint.h"
#include "tessera/tasks/model_task.h"
#include "tessera/tasks/run_folder.h"
#include "tessera/tasks/run_model.h"
#include "tessera/tasks/trained_model.h"
#include "tessera/zoo/adapters/lora.h"

#include <torch/utils.h>

#include <utility>

namespace tessera::tasks {

namespace fs = std::filesystem;

namespace {

/// The trained model of a run that has come to its end.
TrainedRun finished_run(
    const fs::path& run,
    const std::vector<std::string>& overrides) {
  TESSERA_CHECK(
      fs::exists(run / "result.json"),
      "'{}' has no result.json: it is not a run of `tessera train`, or the run has not finished; {}",
      run.string(),
      newest_checkpoint_text(run));
  return trained_run(run, overrides);
}

/// A configuration outside of a run folder has a trained model in model.folder.
TrainedRun scored_run(
    const fs::path& file,
    const std::vector<std::string>& overrides) {
  if (file.filename() == "config.json" &&
      fs::exists(file.parent_path() / "metrics.jsonl")) {
    return finished_run(file.parent_path(), overrides);
  }
  return {file, overrides, {}};
}

TaskScore score(
    const TrainingConfig& config,
    Task& task,
    Engine& engine,
    ParallelRun& parallel) {
  TESSERA_CHECK(
      task.heldout != nullptr,
      "data.heldout: there is nothing to score; name a file with data.heldout=FILE");
  return task.heldout->report(
      *evaluate(task, engine, parallel, config.batch_size));
}

TaskScore evaluate_checkpoint(
    const fs::path& run,
    const std::string& from,
    const ChosenCheckpoint& checkpoint) {
  TrainingConfig config =
      read_training_config(run / "config.json", checkpoint.overrides);
  check(config.engine);
  config.engine.log_memory = false;
  config.trainer.run_folder = run;
  World& world = engine::init_on(config.device);
  prepare_data(config, world, ModelState::kFirst);
  report_best(config, from, checkpoint.path);
  ParallelRun parallel(
      world, config.parallel, static_cast<int>(config.trainer.accumulate));
  torch::manual_seed(config.seed);
  Task task = config.task->open(config, world, parallel, ModelState::kFirst);
  add_lora(config, world, *task.model);
  task.loss = loss_of_run(config, world, parallel, task);
  Engine engine = wrap_model(world, parallel, config, task.model);
  engine::load_run_checkpoint(
      engine, checkpoint.path, engine::CheckpointUse::kRead, {});
  log_values_of_new_weights(*task.model, checkpoint.path);
  const auto averaged = averages_of_run(config, engine);
  return score(config, task, engine, parallel);
}

/// Keys of an adapter, which a run's own replaces.
bool is_of_adapter(const std::string& override_text) {
  return override_text.starts_with("model.lora=") ||
         override_text.starts_with("model.lora.");
}

/// @param is_run whether the model is that of a run, and not of a
///     configuration.
/// @throws tessera::Error for keys that say what a checkpoint's weights are.
void check_scores_export(
    const std::vector<std::string>& overrides,
    bool is_run) {
  for (const std::string& text : overrides) {
    TESSERA_CHECK(
        !is_run || !is_of_adapter(text),
        "{}: the run's model is scored with the adapter that it was exported with, and the key has no effect; for a checkpoint's adapter add --from, e.g. --from best or step-100",
        text);
    TESSERA_CHECK(
        !text.starts_with("training.ema_evaluate="),
        "{}: the run's model is scored, which has the weights that it was exported with; for weights or averages of a checkpoint add --from, e.g. --from best or step-100",
        text);
  }
}

} // namespace

void check_evaluated_overrides(const std::vector<std::string>& overrides) {
  check_chooses_no_checkpoint(
      overrides, "give it as --from, e.g. `tessera eval RUN --from best`");
}

TaskScore evaluate_run(
    const fs::path& run,
    const std::vector<std::string>& overrides,
    const std::string& from) {
  if (!from.empty()) {
    return evaluate_checkpoint(
        run, from, chosen_checkpoint(run, from, overrides));
  }
  check_evaluated_overrides(overrides);
  check_scores_export(
      overrides,
      is_run_folder(fs::is_directory(run) ? run : run.parent_path()));
  const TrainedRun trained = fs::is_directory(run)
                                 ? finished_run(run, overrides)
                                 : scored_run(run, overrides);
  TrainingConfig config =
      read_training_config(trained.config, trained.overrides);
  check(config.engine);
  TESSERA_CHECK(
      !config.model_folder.empty(),
      "{}: model.config makes a model with newly initialized weights, which is not worth scoring; give the run folder, or model.config= and model.folder",
      trained.config.string());
  TESSERA_CHECK(
      !config.lora || !trained.adapter.empty() ||
          config.model_folder.filename() == "model",
      "{}: model.lora is an adapter that is not in model.folder; give the run folder",
      trained.config.string());
  config.engine.log_memory = false; // it would describe training
  if (fs::is_directory(run)) {
    config.trainer.run_folder = run; // it may have been moved
  }
  World& world = engine::init_on(config.device);
  const ModelState state =
      trained.adapter.empty() ? ModelState::kTrained : ModelState::kAdapted;
  prepare_data(config, world, state);
  ParallelRun parallel(
      world, config.parallel, static_cast<int>(config.trainer.accumulate));
  // for newly initialized weights of an adapter's base model
  torch::manual_seed(config.seed);
  Task task = config.task->open(config, world, parallel, state);
  if (!trained.adapter.empty()) {
    zoo::load_lora(*task.model, trained.adapter);
    log_values_of_new_weights(*task.model, trained.adapter);
  }
  if (trained.adapter.empty()) {
    // All of it was trained, and none of it rested in blocks.
    config.engine.precision.frozen_weights = FrozenWeights::kNone;
    for (ModuleRule& rule : config.engine.sharding.modules) {
      rule.options.frozen_weights.reset();
    }
  }
  freeze(*task.model);
  if (config.task->make_loss != nullptr) {
    task.loss = loss_of_run(config, world, parallel, task);
  }
  Engine engine = wrap_model(world, parallel, config, task.model);
  return score(config, task, engine, parallel);
}

} // namespace tessera::tasks
