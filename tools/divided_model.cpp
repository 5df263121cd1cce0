// SPDX-License-Identifier: Apache-2.0
#include "divided_model.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/tasks/run_folder.h"
#include "tessera/tasks/run_model.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/models/pretrained.h"

namespace tessera::tools {

void add_model_options(CLI::App& app, ModelArguments& arguments) {
  app.add_option_function<std::string>(
         "--model",
         [&arguments](const std::string& given) {
           const auto found = tasks::adapted_folder_of(given);
           arguments.model = found.model.string();
           arguments.adapter = found.adapter.string();
         },
         "Hugging Face folder, folder of a LoRA adapter, or run folder of "
         "`tessera train`")
      ->required();
  app.add_option(
      "--architecture",
      arguments.architecture,
      "Model class to use instead of the one in config.json, e.g. GPT2Model");
  app.add_flag(
      "--strict,!--no-strict",
      arguments.strict,
      "Refuse weights that the model does not have, or ignore them");
  app.add_option(
      "--tensor",
      arguments.parallel.sizes.tensor,
      "Number of tensor-parallel ranks, which divide each layer; the other "
      "ranks of the job shard the parameters");
  app.add_option(
      "--pipeline",
      arguments.parallel.sizes.pipeline,
      "Number of pipeline stages");
  app.add_option(
      "--expert",
      arguments.parallel.sizes.expert,
      "Number of expert-parallel ranks, which divide the experts of a layer; "
      "they are among the ranks that shard the parameters");
  app.add_option_function<uint64_t>(
         "--device-memory",
         [&arguments](uint64_t bytes) {
           arguments.memory.device_bytes = static_cast<int64_t>(bytes);
         },
         "Memory of the device for the parameters of a rank, e.g. 20GB; those "
         "that do not fit are copied there for their layers")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true));
  app.add_option_function<uint64_t>(
         "--host-memory",
         [&arguments](uint64_t bytes) {
           arguments.memory.host_bytes = static_cast<int64_t>(bytes);
         },
         "With --device-memory: host memory for what does not fit there")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true));
  app.add_option(
      "--nvme",
      arguments.memory.nvme_path,
      "With --device-memory: folder of a local disk for what fits in neither");
}

DividedModel::DividedModel(const ModelArguments& arguments)
    : world_(init()),
      parallel_(world_, arguments.parallel, /*micro_batches=*/1) {
  zoo::FromPretrainedOptions options;
  options.architecture = arguments.architecture;
  options.lazy = true;
  options.strict = arguments.strict;
  options.context = zoo::layer_context(parallel_);
  if (!arguments.adapter.empty()) {
    options.unties = zoo::unties_of(zoo::read_lora_config(arguments.adapter));
  }
  model_ = zoo::from_pretrained(arguments.model, options);
  if (!arguments.adapter.empty()) {
    zoo::load_lora(*model_, arguments.adapter);
  }
  move_module(*model_, world_.device());
  tasks::freeze(*model_);
  const MemoryBudget& memory = arguments.memory;
  TESSERA_CHECK(
      memory.device_bytes || (!memory.host_bytes && memory.nvme_path.empty()),
      "--host-memory and --nvme are for what does not fit in --device-memory; give it too");
  if (world_.size() > 1 || memory.device_bytes) {
    EngineOptions engine_options;
    engine_options.log_memory = false;
    engine_options.memory = memory;
    engine_options.parallel = parallel_.mesh_or_null();
    engine_.emplace(world_, model_, engine_options);
  } else {
    materialize(*model_);
  }
}

bool DividedModel::reports() const {
  return parallel_.reports_loss() && parallel_.batches().index == 0;
}

} // namespace tessera::tools
