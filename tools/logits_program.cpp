// SPDX-License-Identifier: Apache-2.0
// `tessera logits --model DIR --input IDS.json --output OUT.safetensors`: what
// a model computes, for anyone who wants to check it.

#include "program_main.h"

#include "tessera/engine/engine.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/deferred_init.h"
#include "tessera/sharding/move_module.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/models/tensor_files.h"

#include <CLI/CLI.hpp>

#include <optional>

namespace tessera {

namespace {

struct LogitsArguments {
  std::string model;
  std::string input;
  std::string output;
  std::string architecture;
  int tensor = 1;
  bool sequence = false;
};

void write_logits(const LogitsArguments& arguments) {
  World& world = init();
  // All but the tensor-parallel ranks divide the parameters.
  ParallelGroups groups(
      world,
      ParallelMesh(
          {.tensor = arguments.tensor}, world.size(), world.local_size()),
      world.device());
  zoo::FromPretrainedOptions options;
  options.architecture = arguments.architecture;
  options.lazy = true;
  if (arguments.tensor > 1) {
    TESSERA_CHECK(
        arguments.tensor == world.size(),
        "--tensor is ",
        arguments.tensor,
        ", but the job has ",
        world.size(),
        " ranks; use as many, or leave it out: they then divide the "
        "parameters");
    options.context = zoo::LayerContext(
        TensorParallel{&groups[ParallelGroup::kTensor], arguments.sequence});
  }
  const auto model = zoo::from_pretrained(arguments.model, options);
  move_module(*model, world.device());
  std::optional<Engine> engine;
  if (world.size() > 1 && arguments.tensor == 1) {
    EngineOptions engine_options;
    engine_options.log_memory = false;
    engine.emplace(world, model, engine_options);
  } else {
    materialize(*model);
  }
  zoo::NamedTensors tensors = zoo::read_named_tensors(arguments.input);
  for (auto& [name, tensor] : tensors) {
    tensor = tensor.to(world.device());
  }
  zoo::ModelInput input = zoo::ModelInput::from_named(tensors);
  input.hidden_states = true;
  const at::NoGradGuard no_grad;
  const zoo::ModelOutput output = model->forward(input);
  if (world.rank() == 0) {
    zoo::write_named_tensors(arguments.output, output.named());
  }
}

int run_logits(int argc, char** argv) {
  CLI::App app(
      "Writes what a model computes, all tensors under transformers' names",
      "tessera logits");
  LogitsArguments arguments;
  app.add_option("--model", arguments.model, "Hugging Face folder")->required();
  app.add_option(
         "--input",
         arguments.input,
         "JSON object of nested lists: input_ids, attention_mask, labels, ...")
      ->required();
  app.add_option(
         "--output", arguments.output, "The safetensors file to be written")
      ->required();
  app.add_option(
      "--architecture",
      arguments.architecture,
      "In place of the one that config.json names, e.g. GPT2Model");
  app.add_option(
      "--tensor",
      arguments.tensor,
      "Ranks that divide each layer, in a job of `tessera launch`; without it "
      "they divide the parameters");
  app.add_flag(
      "--sequence",
      arguments.sequence,
      "Tensor-parallel ranks divide sequences between layers, too");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  write_logits(arguments);
  return 0;
}

} // namespace

} // namespace tessera

int main(int argc, char** argv) {
  return tessera::guarded_main([&] { return tessera::run_logits(argc, argv); });
}
