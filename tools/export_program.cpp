// SPDX-License-Identifier: Apache-2.0
// `tessera export RUN_FOLDER [--to FOLDER]`: makes a model of a checkpoint of a
// run.

#include "program_main.h"
#include "run_folder.h"
#include "task_program.h"
#include "training_run.h"

#include "tessera/engine/trainer/job_agreement.h"
#include "tessera/engine/trainer/run_checkpoints.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"

#include <torch/utils.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <optional>
#include <utility>

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

struct ExportArguments {
  fs::path run;
  fs::path to; ///< empty: model/ or adapter/ in the run folder
  std::string from; ///< empty: the newest checkpoint
  std::vector<std::string> overrides;
};

ExportFolders folders_of(
    const ExportArguments& arguments,
    const zoo::TrainingConfig& config) {
  ExportFolders folders = folders_in_run(config);
  if (arguments.to.empty()) {
    return folders;
  }
  if (!folders.adapter.empty() && !folders.model.empty()) {
    return {arguments.to / "model", arguments.to / "adapter"};
  }
  (folders.model.empty() ? folders.adapter : folders.model) = arguments.to;
  return folders;
}

/// So that `tessera eval RUN` knows that there is a model.
void add_result(const fs::path& run, int64_t steps) {
  const fs::path file = run / "result.json";
  if (!fs::exists(file)) {
    const nlohmann::ordered_json result{{"steps", steps}};
    runtime::write_file_atomically(file, result.dump(2) + "\n");
  }
}

void export_run(ExportArguments arguments) {
  const fs::path& run = arguments.run;
  TESSERA_CHECK(
      fs::exists(run / "config.json"),
      "'{}' has no config.json: give the run folder of `tessera train`",
      run.string());
  for (const char* file : {"config.json", "adapter_config.json"}) {
    TESSERA_CHECK(
        arguments.to.empty() || !fs::exists(arguments.to / file),
        "--to is '{}', which contains a model; choose another folder",
        arguments.to.string());
  }
  const auto checkpoint = engine::checkpoint_to_resume(run, arguments.from);
  TESSERA_CHECK(
      checkpoint.has_value(),
      "'{}' has no checkpoints to export{}",
      run.string(),
      fs::exists(run / "result.json") ? "; the run has exported its model"
                                      : "");
  // Any ranks can load what others have saved.
  std::vector<std::string> overrides{"parallel={}", "sharding.shard_ranks=0"};
  overrides.insert(
      overrides.end(), arguments.overrides.begin(), arguments.overrides.end());
  const auto program =
      make_task_program(run / "config.json", overrides, nullptr);
  zoo::TrainingConfig& config = program->config();
  config.trainer.run_folder = run; // it may have been moved
  config.engine.log_memory = false;
  check(config.engine);
  World& world = engine::init_on(config.device);
  std::optional<RunLock> lock;
  engine::JobAgreement(world, "run folder")
      .from_rank_zero("locking the run folder", [&] {
        if (arguments.to.empty()) {
          lock.emplace(run);
        }
        return 0;
      });
  ParallelRun parallel(
      world, config.parallel, static_cast<int>(config.trainer.accumulate));
  torch::manual_seed(config.seed);
  const auto model = program->make_model(world, parallel, ModelState::kFirst);
  add_lora(config, world, *model);
  OwnedEngine owned = wrap_model(world, parallel, config, model);
  EngineRef engine = owned;
  const int64_t step = engine::load_run_checkpoint(engine, *checkpoint, {});
  const ExportFolders folders = folders_of(arguments, config);
  export_model(config, engine, *model, folders);
  if (world.rank() == 0) {
    if (arguments.to.empty()) {
      add_result(run, step);
    }
    std::printf(
        "exported step %lld ('%s') to %s\n",
        static_cast<long long>(step),
        checkpoint->c_str(),
        folders.text().c_str());
  }
}

} // namespace

int run_export(int argc, char** argv) {
  CLI::App app(
      "Makes a model of a checkpoint of a run, e.g. of one that was stopped. "
      "Reads the run's config.json, and the data it names",
      "tessera export");
  ExportArguments arguments;
  app.add_option("run", arguments.run, "Run folder of `tessera train`")
      ->required();
  app.add_option(
      "overrides",
      arguments.overrides,
      "key.path=value, overrides the value of config.json");
  app.add_option(
      "--to",
      arguments.to,
      "Folder of the model; default: model/ (with model.lora: adapter/) in the "
      "run folder");
  app.add_option(
      "--from",
      arguments.from,
      "Checkpoint, e.g. step-100; default: the newest one");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  export_run(std::move(arguments));
  return 0;
}

} // namespace tessera::tools
