// SPDX-License-Identifier: Apache-2.0
// `tessera fetch NAME...`: makes models and data of the Hugging Face Hub local.

#include "program_main.h"

#include "tessera/runtime/hub/fetch.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <string>
#include <vector>

namespace tessera::tools {

namespace {

/// @throws tessera::Error if it is neither hf://... nor "org/name".
runtime::HubName named(const std::string& text) {
  const auto model = runtime::hub_name_of_model(text);
  return model ? *model : runtime::parse_hub_name(text);
}

} // namespace

int run_fetch(int argc, char** argv) {
  CLI::App app(
      "Fetches models and data of the Hugging Face Hub into the cache that "
      "Python's huggingface_hub has too, and prints where they are",
      "tessera fetch");
  std::vector<std::string> names;
  runtime::FetchOptions options;
  bool no_weights = false;
  app.add_option(
         "names",
         names,
         "org/name of a model, hf://org/name@revision, or "
         "hf://datasets/org/name/FILE, which may be a folder or a pattern")
      ->required();
  app.add_option(
      "--include",
      options.include,
      "Patterns of files, instead of what a model is loaded from: '*.gguf'");
  app.add_flag(
      "--no-weights",
      no_weights,
      "Configuration and tokenizer of models alone, e.g. for `tessera plan`");
  app.footer(
      "Environment: HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT, "
      "HF_HUB_OFFLINE; see docs/models.md");
  const auto check = [&names] {
    for (const std::string& name : names) {
      named(name);
    }
  };
  if (const auto code = parse_arguments(app, argc, argv, check)) {
    return *code;
  }
  check_one_process("fetch");
  options.weights = !no_weights;
  for (const std::string& name : names) {
    const auto path = runtime::fetch(named(name), options);
    std::printf("%s\n", path.c_str());
    std::fflush(stdout);
  }
  return 0;
}

} // namespace tessera::tools
