// SPDX-License-Identifier: Apache-2.0
// `tessera eval RUN_FOLDER|CONFIG [key.path=value ...] [--from CHECKPOINT]`:
// scores a model trained by `tessera train` on held-out data.

#include "program_main.h"

#include "tessera/runtime/comm/init.h"
#include "tessera/tasks/evaluate_run.h"
#include "tessera/tasks/training_config.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>

namespace tessera::tools {

int run_eval(int argc, char** argv) {
  CLI::App app("Scores a trained model on held-out data", "tessera eval");
  std::string path;
  std::vector<std::string> overrides;
  std::string from;
  app.add_option(
         "run",
         path,
         "Run folder of `tessera train`, or a configuration file whose "
         "model.folder is a trained model")
      ->required();
  app.add_option(
      "overrides", overrides, "key.path=value, overrides the file's value");
  app.add_option(
      "--from",
      from,
      "Checkpoint of the run to score, e.g. best or step-100; default: the "
      "model that the run has exported");
  app.footer("Keys and their defaults: configs/README.md");
  const auto check = [&] {
    tasks::check_evaluated_overrides(overrides);
    const std::filesystem::path given(path);
    tasks::read_training_config(
        std::filesystem::is_directory(given) ? given / "config.json" : given,
        overrides,
        nullptr,
        tasks::HubFiles::kNone);
  };
  if (const auto code = parse_arguments(app, argc, argv, check)) {
    return *code;
  }
  const TaskScore score = tasks::evaluate_run(path, overrides, from);
  if (init().rank() == 0) {
    std::printf("%s\n", score.text.c_str());
  }
  return 0;
}

} // namespace tessera::tools
