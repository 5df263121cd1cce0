// SPDX-License-Identifier: Apache-2.0
#include "divided_model.h"

#include "size_option.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/tasks/run_folder.h"
#include "tessera/tasks/run_model.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/models/pretrained.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <typeinfo>
#include <utility>

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
      ->transform(size_in_bytes());
  app.add_option_function<uint64_t>(
         "--host-memory",
         [&arguments](uint64_t bytes) {
           arguments.memory.host_bytes = static_cast<int64_t>(bytes);
         },
         "With --device-memory: host memory for what does not fit there")
      ->transform(size_in_bytes());
  app.add_option(
      "--nvme",
      arguments.memory.nvme_path,
      "With --device-memory: folder of a local disk for what fits in neither");
}

namespace {

/// What begins keys that have no option.
constexpr std::array<std::string_view, 4> kSections{
    "memory.",
    "offload.",
    "placement.",
    "sharding."};

/// An error of the engine, with the options of add_model_options() in place of
/// keys. Remedies that are keys without an option are left out.
std::string keys_as_options(std::string text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kNames{
      {{"memory.device_bytes", "--device-memory"},
       {"memory.host_bytes", "--host-memory"},
       {"memory.nvme_path", "--nvme"},
       {"parallel.tensor", "--tensor"},
       {"parallel.pipeline", "--pipeline"},
       {"parallel.expert", "--expert"}}};
  for (const auto& [key, option] : kNames) {
    for (size_t at = text.find(key); at != text.npos; at = text.find(key, at)) {
      text.replace(at, key.size(), option);
    }
  }
  constexpr std::string_view kRemedy = "\n  - ";
  for (size_t at = text.find(kRemedy); at != text.npos;) {
    const size_t end = std::min(text.find('\n', at + 1), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    const bool has_key = std::any_of(
        kSections.begin(), kSections.end(), [line](std::string_view section) {
          return line.find(section) != line.npos;
        });
    if (has_key) {
      text.erase(at, end - at);
    }
    at = text.find(kRemedy, has_key ? at : end);
  }
  return text;
}

/// Runs a part that throws errors of the engine.
template <typename Part>
auto with_names_of_options(const Part& part) {
  try {
    return part();
  } catch (const Error& error) {
    const std::string named = keys_as_options(error.what());
    if (typeid(error) != typeid(Error) || named == error.what()) {
      throw;
    }
    throw Error(named);
  }
}

} // namespace

DividedModel::DividedModel(const ModelArguments& arguments)
    : world_(init()), parallel_(with_names_of_options([&] {
        return ParallelRun(world_, arguments.parallel, /*micro_batches=*/1);
      })) {
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
    with_names_of_options(
        [&] { engine_.emplace(world_, model_, engine_options); });
  } else {
    materialize(*model_);
  }
}

bool DividedModel::reports() const {
  return parallel_.reports_loss() && parallel_.batches().index == 0;
}

} // namespace tessera::tools
