// SPDX-License-Identifier: Apache-2.0
// `tessera eval RUN_FOLDER|CONFIG [key.path=value ...]`: scores a model trained
// by `tessera train` on held-out data.

#include "divided_model.h"
#include "program_main.h"
#include "run_folder.h"
#include "task_program.h"
#include "training_run.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/zoo/adapters/lora.h"

#include <torch/utils.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <utility>

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

/// The trained model to score.
struct Trained {
  fs::path config;
  std::vector<std::string> overrides;
  fs::path adapter; ///< on the base model; may be empty
};

/// Discards the layout of ranks that the model was trained with.
constexpr const char* kOneRank = "parallel={}";

/// The trained model of a run folder: the exported model replaces the one that
/// training started from.
Trained trained_in(const fs::path& run, std::vector<std::string> overrides) {
  TESSERA_CHECK(
      fs::exists(run / "result.json"),
      "'{}' has no result.json: it is not a run of `tessera train`, or the run has not finished; {}",
      run.string(),
      newest_checkpoint_text(run));
  Trained trained{run / "config.json", std::move(overrides), {}};
  if (!fs::exists(run / "model") && fs::exists(run / "adapter")) {
    trained.adapter = run / "adapter"; // LoRA that was not merged
    trained.overrides.insert(trained.overrides.begin(), kOneRank);
    return trained;
  }
  const auto config = runtime::parse_json(
      runtime::read_text_file(trained.config), trained.config.string());
  std::vector<std::string> first{
      "model.folder=" + (run / "model").string(), kOneRank};
  if (config.contains("model") && config["model"].contains("config")) {
    first.emplace_back("model.config=");
  }
  trained.overrides.insert(
      trained.overrides.begin(), first.begin(), first.end());
  return trained;
}

/// A configuration outside of a run folder has a trained model in model.folder.
Trained trained_of(const fs::path& file, std::vector<std::string> overrides) {
  if (file.filename() == "config.json" &&
      fs::exists(file.parent_path() / "metrics.jsonl")) {
    return trained_in(file.parent_path(), std::move(overrides));
  }
  return {file, std::move(overrides), {}};
}

void score(const Trained& trained) {
  const auto program =
      make_task_program(trained.config, trained.overrides, nullptr);
  zoo::TrainingConfig& config = program->config();
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
  World& world = engine::init_on(config.device);
  ParallelRun parallel(
      world, config.parallel, static_cast<int>(config.trainer.accumulate));
  // for newly initialized weights of an adapter's base model
  torch::manual_seed(config.seed);
  const auto model = program->make_model(
      world,
      parallel,
      trained.adapter.empty() ? ModelState::kTrained : ModelState::kAdapted);
  if (!trained.adapter.empty()) {
    zoo::load_lora(*model, trained.adapter);
  }
  freeze(*model);
  Engine engine = wrap_model(world, parallel, config, model);
  const auto result = program->score(parallel, engine, *model);
  TESSERA_CHECK(
      result.has_value(),
      "data.heldout: there is nothing to score; name a file with data.heldout=FILE");
  if (world.rank() == 0) {
    std::printf("%s\n", result->text.c_str());
  }
}

} // namespace

int run_eval(int argc, char** argv) {
  CLI::App app("Scores a trained model on held-out data", "tessera eval");
  std::string path;
  std::vector<std::string> overrides;
  app.add_option(
         "run",
         path,
         "Run folder of `tessera train`, or a configuration file whose "
         "model.folder is a trained model")
      ->required();
  app.add_option(
      "overrides", overrides, "key.path=value, overrides the file's value");
  app.footer("Keys and their defaults: configs/README.md");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  score(
      fs::is_directory(path) ? trained_in(path, std::move(overrides))
                             : trained_of(path, std::move(overrides)));
  return 0;
}

} // namespace tessera::tools
