// SPDX-License-Identifier: Apache-2.0
// `tessera train CONFIG [key.path=value ...]`: trains a model.

#include "program_main.h"
#include "task_program.h"
#include "training_run.h"

#include <CLI/CLI.hpp>

namespace tessera::tools {

int run_train(int argc, char** argv) {
  CLI::App app(
      "Trains a text classifier, a language model, or any model of the zoo "
      "on examples",
      "tessera train");
  std::string file;
  std::vector<std::string> overrides;
  app.add_option("config", file, "Configuration file (JSON)")->required();
  app.add_option(
      "overrides", overrides, "key.path=value, overrides the file's value");
  app.footer("Keys and their defaults: tessera keys, or configs/README.md");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  nlohmann::ordered_json resolved;
  const auto program = make_task_program(file, overrides, &resolved);
  return train_task(*program, resolved);
}

} // namespace tessera::tools
