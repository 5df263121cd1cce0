// SPDX-License-Identifier: Apache-2.0
// The tessera program: subcommands, each in its own file.

#include "command.h"
#include "usage_error.h"

#include "tessera/runtime/core/log.h"

#include <algorithm>
#include <exception>
#include <iostream>
#include <vector>

namespace tessera::tools {

namespace {

constexpr int kFailure = 1;
/// Whether tessera-run is not part of the build, as for the Python wheel.
constexpr bool kLaunchesOnly = TESSERA_LAUNCHES_ONLY;

/// `tessera help [COMMAND]` as `tessera [COMMAND] --help`.
std::vector<std::string> without_help_command(
    std::vector<std::string> arguments) {
  if (!arguments.empty() && arguments.front() == "help") {
    arguments.erase(arguments.begin());
    arguments.emplace_back("--help");
  }
  return arguments;
}

/// The commands that tessera-run has.
std::vector<Command> add_program_commands(CLI::App& app) {
  return {
      add_program_command(app, "train", "Train a model from a configuration"),
      add_program_command(
          app, "export", "Make a model of a run's newest checkpoint"),
      add_program_command(app, "eval", "Score a trained model"),
      add_program_command(
          app, "logits", "Write the outputs of a model, for comparison"),
      add_program_command(
          app, "generate", "Continue texts, answer in conversations"),
      add_program_command(
          app,
          "convert",
          "Change dtypes, merge adapters, average weights, write GGUF"),
      add_program_command(
          app, "inspect", "List what a checkpoint or weight file contains"),
      add_program_command(
          app, "predict", "Classify texts and images, answer questions"),
      add_program_command(
          app, "fetch", "Fetch models and data of the Hugging Face Hub"),
      add_program_command(app, "tokens", "Show the token ids of texts"),
      add_program_command(
          app, "tokenize", "Make token files of text, to train on"),
      add_program_command(
          app,
          "plan",
          "Find out what fits into memory, and which layout is fast"),
      add_program_command(app, "keys", "List the keys of configurations"),
      add_program_command(
          app, "bench", "Measure bandwidths and predict step times"),
  };
}

int run_program(int argc, char** argv) {
  // The arguments after "--" belong to the launched program.
  char** const end = argv + argc;
  char** const mark = std::find_if(
      argv, end, [](const char* text) { return std::string(text) == "--"; });
  const std::vector<std::string> program(std::min(mark + 1, end), end);
  const auto arguments = without_help_command({argv + 1, mark});

  CLI::App app("Tessera: memory-sharding training for LibTorch", "tessera");
  app.set_version_flag("--version", "tessera " TESSERA_VERSION);
  app.require_subcommand(1);
  std::vector<Command> commands{add_launch_command(app, program)};
  if constexpr (kLaunchesOnly) {
    app.footer("The other commands come with a build of Tessera's sources.");
  } else {
    app.footer("Run `tessera help COMMAND` to see the options of a command.");
    const auto others = add_program_commands(app);
    commands.insert(commands.end(), others.begin(), others.end());
  }

  if (arguments.empty()) {
    std::cerr << app.help();
    return kUsageError;
  }
  try {
    // CLI11 expects them in reverse order.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    const auto chosen = std::find_if(
        commands.begin(), commands.end(), [](const Command& command) {
          return command.parser->parsed();
        });
    return chosen->run();
  } catch (const CLI::ParseError& error) {
    // --help and --version arrive here, too.
    return report_usage(app, error, arguments);
  }
}

} // namespace

} // namespace tessera::tools

int main(int argc, char** argv) {
  try {
    return tessera::tools::run_program(argc, argv);
  } catch (const std::exception& error) {
    tessera::log_error("{}", error.what());
    return tessera::tools::kFailure;
  }
}
