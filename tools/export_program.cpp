// SPDX-License-Identifier: Apache-2.0
// `tessera export RUN_FOLDER [--to FOLDER]`: makes a model of a checkpoint of a
// run.

#include "program_main.h"

#include "tessera/tasks/export_run.h"

#include <CLI/CLI.hpp>

namespace tessera::tools {

int run_export(int argc, char** argv) {
  CLI::App app(
      "Makes a model of a checkpoint of a run, e.g. of one that was stopped. "
      "Reads the run's config.json, and the data it names",
      "tessera export");
  tasks::ExportOptions options;
  app.add_option("run", options.run, "Run folder of `tessera train`")
      ->required();
  app.add_option(
      "overrides",
      options.overrides,
      "key.path=value, overrides the value of config.json");
  app.add_option(
      "--to",
      options.to,
      "Folder of the model, or with model.lora of the adapter, unless "
      "model.lora.merge=true; default: model/ and adapter/ in the run folder");
  app.add_option(
      "--from",
      options.from,
      "Checkpoint, e.g. best or step-100; default: the newest one");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  tasks::export_run(options);
  return 0;
}

} // namespace tessera::tools
