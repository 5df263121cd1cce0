// SPDX-License-Identifier: Apache-2.0
// `tessera logits --model DIR --input IDS.json --output OUT.safetensors`:
// writes a model's outputs, for checking them.

#include "divided_model.h"
#include "program_main.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/inputs/tensor_files.h"
#include "tessera/zoo/models/pipeline_model.h"

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace tessera::tools {

namespace {

struct LogitsArguments {
  ModelArguments model;
  std::string input;
  std::string output;
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

/// @return the results on the last pipeline stage; elsewhere nothing.
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
  const std::filesystem::path output = arguments.output;
  TESSERA_CHECK(
      !exists(output) ||
          (!std::filesystem::equivalent(output, arguments.input) &&
           !exists(output.parent_path() / "config.json")),
      "--output is '{}', which is the input or a file in a model's folder; choose another one",
      arguments.output);
  DividedModel divided(arguments.model);
  const zoo::ModelInput input = read_input(arguments.input, divided.device());
  const at::NoGradGuard no_grad;
  const auto outputs = run_model(divided.parallel(), divided.model(), input);
  if (divided.reports()) {
    zoo::write_named_tensors(arguments.output, outputs.front().named());
  }
}

} // namespace

int run_logits(int argc, char** argv) {
  CLI::App app(
      "Writes all outputs of a model, under the names of transformers",
      "tessera logits");
  LogitsArguments arguments;
  add_model_options(app, arguments.model);
  app.add_option(
         "--input",
         arguments.input,
         "JSON file of nested lists (input_ids, attention_mask, "
         "pixel_values, labels, ...), or a .safetensors file of such tensors")
      ->required();
  app.add_option("--output", arguments.output, "Safetensors file to write")
      ->required();
  app.add_option(
      "--context",
      arguments.model.parallel.sizes.context,
      "Number of context-parallel ranks, which divide each sequence");
  app.add_flag(
      "--sequence",
      arguments.model.parallel.sequence,
      "Sequence parallelism: tensor-parallel ranks divide sequences between layers");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  write_logits(arguments);
  return 0;
}

} // namespace tessera::tools
