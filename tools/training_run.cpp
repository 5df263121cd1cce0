// SPDX-License-Identifier: Apache-2.0
#include "training_run.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/memory/cpu_memory_counter.h"
#include "tessera/sharding/move_module.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/hf_folder_writer.h"
#include "tessera/zoo/models/pretrained.h"

#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <optional>
#include <system_error>

namespace tessera::tools {

namespace {

/// @throws tessera::Error if the run would overwrite something other than a
///     run.
void check_run_folder(const zoo::TrainingConfig& config) {
  const auto& folder = config.trainer.run_folder;
  const auto file = folder / "config.json";
  if (std::filesystem::exists(file)) {
    const auto json = nlohmann::json::parse(
        runtime::read_text_file(file), nullptr, /*allow_exceptions=*/false);
    TESSERA_CHECK(
        json.is_object() && json.contains("output") &&
            json.contains("training"),
        "output.folder is '{}', whose config.json is not from a run of `tessera train` and would be overwritten; choose another folder",
        folder.string());
  }
  // Check before training rather than after it.
  if (!config.lora || config.lora->merge) {
    zoo::check_hf_folder(folder / "model");
  }
}

/// Rank 0 creates the run folder and writes the configuration there.
void prepare_run_folder(
    const World& world,
    const zoo::TrainingConfig& config,
    const nlohmann::ordered_json& resolved) {
  if (world.rank() != 0) {
    return;
  }
  check_run_folder(config);
  const auto& folder = config.trainer.run_folder;
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  TESSERA_CHECK(
      !code,
      "output.folder: cannot create '{}': {}. Choose another one with output.folder=PATH.",
      folder.string(),
      code.message());
  if (!config.trainer.resume) {
    // Results of an earlier run; scoring requires those of a finished run.
    for (const char* result : {"result.json", "loss.svg", "report.html"}) {
      std::filesystem::remove(folder / result, code);
    }
  }
  runtime::write_file_atomically(
      folder / "config.json", resolved.dump(2) + "\n");
}

/// Logs the layout of ranks if they divide the model.
void tell_layout(const World& world, const ParallelRun& parallel) {
  if (world.rank() == 0 && parallel.batches().count < world.size()) {
    log_info("{}", parallel.mesh().table());
  }
}

/// Adds the adapter, if the configuration has one, and logs its size.
void add_lora(
    const zoo::TrainingConfig& config,
    const World& world,
    zoo::Model& model) {
  if (!config.lora) {
    return;
  }
  const auto layers = zoo::apply_lora(model, config.lora->adapter, config.seed);
  if (world.rank() != 0) {
    return;
  }
  int64_t trained = 0;
  int64_t all = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    all += parameter.numel();
    trained += parameter.requires_grad() ? parameter.numel() : 0;
  }
  log_info(
      "LoRA of rank {} in {} layers: {} of {} parameters are trained on this rank",
      config.lora->adapter.r,
      layers.size(),
      trained,
      all);
}

/// Exports the trained model for transformers, or the adapter for PEFT, to the
/// run folder. Collective.
void export_model(
    const zoo::TrainingConfig& config,
    const World& world,
    EngineRef engine,
    const zoo::Model& model) {
  const auto& folder = config.trainer.run_folder;
  if (!config.lora) {
    zoo::save_pretrained(
        world, engine, model, folder / "model", config.model_folder);
    return;
  }
  zoo::save_lora(world, engine.main(), model, folder / "adapter");
  if (config.lora->merge) {
    zoo::save_merged(
        world, engine.main(), model, folder / "model", config.model_folder);
  }
}

/// The folders that export_model() writes, for the log.
const char* exported_folders(const zoo::TrainingConfig& config) {
  if (!config.lora) {
    return "model/";
  }
  return config.lora->merge ? "adapter/, model/" : "adapter/";
}

/// "N steps of M examples over R rank(s)".
std::string steps_text(
    const World& world,
    const ParallelRun& parallel,
    const zoo::TrainingConfig& config,
    const TrainingTask& task) {
  return formatted(
      "{} steps of {} examples over {} rank(s)",
      total_steps_of(config.trainer, task),
      config.batch_size * config.trainer.accumulate * parallel.batches().count,
      world.size());
}

void tell_result(
    const zoo::TrainingConfig& config,
    const TrainingSummary& summary,
    const std::optional<TaskScore>& score) {
  const std::string folder = config.trainer.run_folder.string();
  if (summary.new_steps == 0) {
    std::printf(
        "nothing left to do: run folder %s has all %lld steps\n",
        folder.c_str(),
        static_cast<long long>(summary.steps));
    return;
  }
  std::printf(
      "%lld steps in %.0f s, %.0f tokens/s, last loss %.4f\n",
      static_cast<long long>(summary.steps),
      summary.seconds,
      summary.tokens_per_s,
      summary.last_loss);
  nlohmann::ordered_json result{
      {"steps", summary.steps},
      {"seconds", summary.seconds},
      {"tokens_per_s", summary.tokens_per_s},
      {"last_loss", summary.last_loss}};
  if (score) {
    std::printf("held-out %s\n", score->text.c_str());
    result.update(score->values);
  }
  std::printf(
      "run folder %s: config.json, metrics.jsonl, loss.svg, report.html, "
      "result.json, %s\n",
      folder.c_str(),
      exported_folders(config));
  runtime::write_file_atomically(
      config.trainer.run_folder / "result.json", result.dump(2) + "\n");
}

} // namespace

OwnedEngine wrap_model(
    World& world,
    ParallelRun& parallel,
    zoo::TrainingConfig& config,
    const std::shared_ptr<zoo::Model>& model) {
  move_module(*model, world.device());
  model->set_recomputed_layers(config.checkpoint_layers.value_or(0));
  config.engine.parallel = parallel.mesh_if_given();
  return {world, model, config.engine};
}

void train_task(TaskProgram& program, const nlohmann::ordered_json& resolved) {
  zoo::TrainingConfig& config = program.config();
  check(config.engine);
  runtime::install_cpu_memory_counter();
  World& world = engine::init_on(config.device);
  ParallelRun parallel(
      world, config.parallel, static_cast<int>(config.trainer.accumulate));
  tell_layout(world, parallel);
  // newly initialized weights must be equal on all ranks
  torch::manual_seed(config.seed);
  const auto model = program.make_model(world, parallel, ModelState::kFirst);
  add_lora(config, world, *model);
  OwnedEngine owned = wrap_model(world, parallel, config, model);
  EngineRef engine = owned;
  config.trainer.parallel = &parallel;
  config.trainer.random_seed = config.seed;
  const auto task = program.make_task(
      model,
      engine,
      parallel,
      {parallel.batches(),
       config.batch_size,
       config.seed,
       parallel.one_batch()});
  if (world.rank() == 0) {
    log_info(
        "training on {}, {}",
        program.data_text(),
        steps_text(world, parallel, config, *task));
  }
  // Only now, so that a rejected run leaves no folder.
  prepare_run_folder(world, config, resolved);
  model->train();
  const TrainingSummary summary = train(world, engine, *task, config.trainer);
  const auto score = program.score(parallel, engine, *model);
  export_model(config, world, engine, *model);
  if (world.rank() == 0) {
    tell_result(config, summary, score);
  }
}

} // namespace tessera::tools
