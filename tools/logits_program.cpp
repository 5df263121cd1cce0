// SPDX-License-Identifier: Apache-2.0
// `tessera logits --model DIR --input IDS.json --output OUT.safetensors`: what
// a model computes, for anyone who wants to check it.

#include "program_main.h"

#include "tessera/engine/engine.h"
#include "tessera/engine/parallel_run.h"
#include "tessera/sharding/deferred_init.h"
#include "tessera/sharding/move_module.h"
#include "tessera/zoo/models/pipeline_model.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/models/tensor_files.h"

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <vector>

namespace tessera {

namespace {

struct LogitsArguments {
  std::string model;
  std::string input;
  std::string output;
  std::string architecture;
  ParallelOptions parallel;
};

zoo::ModelInput read_input(const std::string& file, at::Device device) {
  zoo::NamedTensors tensors = zoo::read_named_tensors(file);
  for (auto& [name, tensor] : tensors) {
    tensor = tensor.to(device);
  }
  zoo::ModelInput input = zoo::ModelInput::from_named(tensors);
  input.hidden_states = true;
  return input;
}

/// @return results where they are: on the last stage.
std::vector<zoo::ModelOutput> run_model(
    ParallelRun& parallel,
    zoo::Model& model,
    const zoo::ModelInput& input) {
  if (parallel.pipeline() != nullptr) {
    return zoo::evaluate_pipeline(*parallel.pipeline(), model, {input});
  }
  return {model.forward(input)};
}

void write_logits(const LogitsArguments& arguments) {
  World& world = init();
  // All but the ranks that divide layers divide the parameters.
  ParallelRun parallel(world, arguments.parallel, /*micro_batches=*/1);
  zoo::FromPretrainedOptions options;
  options.architecture = arguments.architecture;
  options.lazy = true;
  options.context = zoo::layer_context(parallel);
  const auto model = zoo::from_pretrained(arguments.model, options);
  move_module(*model, world.device());
  std::optional<Engine> engine;
  if (world.size() > 1) {
    EngineOptions engine_options;
    engine_options.log_memory = false;
    engine_options.parallel = parallel.mesh_if_given();
    engine.emplace(world, model, engine_options);
  } else {
    materialize(*model);
  }
  const zoo::ModelInput input = read_input(arguments.input, world.device());
  const at::NoGradGuard no_grad;
  const auto outputs = run_model(parallel, *model, input);
  if (parallel.tells_loss() && parallel.batches().index == 0) {
    zoo::write_named_tensors(arguments.output, outputs.front().named());
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
         "JSON object of nested lists (input_ids, attention_mask, "
         "pixel_values, labels, ...), or a .safetensors file of such tensors")
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
      arguments.parallel.sizes.tensor,
      "Ranks that divide each layer, in a job of `tessera launch`; what is "
      "left "
      "of the ranks divides the parameters");
  app.add_option(
      "--pipeline",
      arguments.parallel.sizes.pipeline,
      "Stages that divide the layers");
  app.add_flag(
      "--sequence",
      arguments.parallel.sequence,
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
