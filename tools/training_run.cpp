// SPDX-License-Identifier: Apache-2.0
#include "training_run.h"

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/models/pretrained.h"

#include <nlohmann/json.hpp>

#include <system_error>

namespace tessera {

std::string task_of(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides) {
  nlohmann::json config = parse_json(read_text_file(file), file.string());
  for (const std::string& one : overrides) {
    apply_override(config, one);
  }
  const auto task = config.find("task");
  return task != config.end() && task->is_string() ? task->get<std::string>()
                                                   : "";
}

void prepare_run_folder(
    const World& world,
    const std::filesystem::path& folder,
    const nlohmann::ordered_json& resolved) {
  if (world.rank() != 0) {
    return;
  }
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  TESSERA_CHECK(
      !code,
      "output.folder: cannot create '",
      folder.string(),
      "': ",
      code.message(),
      ". Choose another one with output.folder=PATH.");
  write_file_atomically(folder / "config.json", resolved.dump(2) + "\n");
}

void tell_layout(const World& world, const ParallelRun& parallel) {
  if (world.rank() == 0 && parallel.batches().count < world.size()) {
    log_info(parallel.mesh().table());
  }
}

void add_lora(
    const TrainingConfig& config,
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
      "LoRA of rank ",
      config.lora->adapter.r,
      " in ",
      layers.size(),
      " layers: ",
      trained,
      " of ",
      all,
      " parameters are trained on this rank");
}

void export_model(
    const TrainingConfig& config,
    const World& world,
    Engine& engine,
    const zoo::Model& model) {
  const auto& folder = config.trainer.run_folder;
  if (!config.lora) {
    zoo::save_pretrained(
        world, engine, model, folder / "model", config.model_folder);
    return;
  }
  zoo::save_lora(world, engine, model, folder / "adapter");
  if (config.lora->merge) {
    zoo::save_merged(
        world, engine, model, folder / "model", config.model_folder);
  }
}

const char* exported_folders(const TrainingConfig& config) {
  if (!config.lora) {
    return "model/";
  }
  return config.lora->merge ? "adapter/, model/" : "adapter/";
}

std::string steps_text(
    const World& world,
    const ParallelRun& parallel,
    const TrainingConfig& config,
    const TrainingTask& task) {
  return detail::concat(
      total_steps_of(config.trainer, task),
      " steps of ",
      config.batch_size * config.trainer.accumulate * parallel.batches().count,
      " texts over ",
      world.size(),
      " rank(s)");
}

} // namespace tessera
