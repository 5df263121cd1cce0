// SPDX-License-Identifier: Apache-2.0
// `tessera train CONFIG [key.path=value ...]`: trains a model.

#include "program_main.h"

#include "tessera/runtime/launch/stop_signals.h"
#include "tessera/zoo/tasks/run_training.h"

#include <CLI/CLI.hpp>

namespace tessera::tools {

int run_train(int argc, char** argv) {
  CLI::App app(
      "Trains a model from a configuration, whose key `task` says on what: "
      "text_classification, question_answering, language_model, supervised "
      "(conversations, prompts and completions), image_folder or examples "
      "(inputs of any model)",
      "tessera train");
  std::string file;
  std::vector<std::string> overrides;
  app.add_option("config", file, "Configuration file (JSON)")->required();
  app.add_option(
      "overrides", overrides, "key.path=value, overrides the file's value");
  app.footer("Keys and their defaults: tessera keys, or configs/README.md");
  const auto check = [&] { zoo::read_training_config(file, overrides); };
  if (const auto code = parse_arguments(app, argc, argv, check)) {
    return *code;
  }
  const auto result =
      zoo::run_training(zoo::read_training_config(file, overrides));
  const int signal = result.summary.stop_signal;
  return signal == 0 ? 0 : runtime::StopSignals::exit_code(signal);
}

} // namespace tessera::tools
