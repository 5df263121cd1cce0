// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/export_run.h"

#include "tessera/engine/trainer/job_agreement.h"
#include "tessera/engine/trainer/run_checkpoints.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/tasks/best_checkpoint.h"
#include "tessera/tasks/run_folder.h"
#include "tessera/tasks/run_model.h"
#include "tessera/zoo/formats/hf_folder_writer.h"

#include <torch/utils.h>

#include <cstdio>
#include <optional>

namespace tessera::tasks {

namespace fs = std::filesystem;

namespace {

ExportFolders folders_of(
    const ExportOptions& options,
    const TrainingConfig& config) {
  ExportFolders folders = folders_in_run(config);
  // One that was put there by hand stays.
  if (zoo::has_tokenizer(folders.model)) {
    folders.tokenizer = folders.model;
  }
  if (options.to.empty()) {
    return folders;
  }
  // One folder, which has what it is for: an adapter that is merged is in it.
  return folders.model.empty()
             ? ExportFolders{{}, options.to, folders.tokenizer}
             : ExportFolders{options.to, {}, folders.tokenizer};
}

/// So that `tessera eval RUN` knows that there is a model.
void add_result(const fs::path& run, int64_t steps) {
  const fs::path file = run / "result.json";
  if (!fs::exists(file)) {
    const nlohmann::ordered_json result{{"steps", steps}};
    runtime::write_file_atomically(file, result.dump(2) + "\n");
  }
}

} // namespace

void export_run(const ExportOptions& options) {
  const fs::path& run = options.run;
  for (const char* file : {"config.json", "adapter_config.json"}) {
    TESSERA_CHECK(
        options.to.empty() || !fs::exists(options.to / file),
        "--to is '{}', which contains a model; choose another folder",
        options.to.string());
  }
  const ChosenCheckpoint checkpoint =
      chosen_checkpoint(run, options.from, options.overrides);
  TrainingConfig config =
      read_training_config(run / "config.json", checkpoint.overrides);
  config.trainer.run_folder = run; // it may have been moved
  config.engine.log_memory = false;
  check(config.engine);
  World& world = engine::init_on(config.device);
  prepare_data(config, world, ModelState::kFirst);
  report_best(config, options.from, checkpoint.path);
  std::optional<RunLock> lock;
  engine::JobAgreement(world, "run folder")
      .from_rank_zero("locking the run folder", [&] {
        if (options.to.empty()) {
          lock.emplace(run);
        }
        return 0;
      });
  ParallelRun parallel(
      world, config.parallel, static_cast<int>(config.trainer.accumulate));
  torch::manual_seed(config.seed);
  const Task task =
      config.task->open(config, world, parallel, ModelState::kFirst);
  add_lora(config, world, *task.model);
  Engine engine = wrap_model(world, parallel, config, task.model);
  const int64_t step = engine::load_run_checkpoint(
      engine, checkpoint.path, engine::CheckpointUse::kRead, {});
  log_values_of_new_weights(*task.model, checkpoint.path);
  const ExportFolders folders = folders_of(options, config);
  const auto averaged = averages_of_run(config, engine);
  export_model(config, engine, *task.model, folders);
  if (world.rank() == 0) {
    if (options.to.empty()) {
      add_result(run, step);
    }
    std::printf(
        "exported step %lld ('%s') to %s\n",
        static_cast<long long>(step),
        checkpoint.path.c_str(),
        folders.text().c_str());
  }
}

} // namespace tessera::tasks
