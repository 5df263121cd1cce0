// SPDX-License-Identifier: Apache-2.0
#include "command.h"

#include "tessera/runtime/launch/launch.h"

#include <chrono>
#include <memory>

namespace tessera::tools {

namespace {

struct Arguments {
  runtime::LaunchOptions options;
  double grace_seconds = 5;
  bool bare_lines = false;
};

} // namespace

Command add_launch_command(
    CLI::App& app,
    const std::vector<std::string>& program) {
  auto* parser = app.add_subcommand(
      "launch",
      "Start ranks of a program on this host:\n"
      "  tessera launch --nproc N [OPTIONS] -- PROGRAM [ARGS...]\n"
      "Sets torchrun's environment variables. If one rank fails, the others are "
      "ended.");
  auto arguments = std::make_shared<Arguments>();
  runtime::LaunchOptions& options = arguments->options;
  constexpr int kMaxPort = 65535;
  constexpr int kMaxRanks = 65536;
  constexpr double kMaxGraceSeconds = 86400;
  parser->add_option("--nproc", options.nproc, "Number of ranks to start")
      ->required()
      ->check(CLI::Range(1, kMaxRanks));
  parser
      ->add_option(
          "--port",
          options.port,
          "TCP port where the ranks meet; 0, the default, picks a free one")
      ->check(CLI::Range(0, kMaxPort));
  parser
      ->add_option(
          "--grace",
          arguments->grace_seconds,
          "Seconds between asking ranks to end and killing them; default 5")
      ->check(CLI::Range(0.0, kMaxGraceSeconds));
  parser->add_flag(
      "--no-prefix",
      arguments->bare_lines,
      "Do not prefix output lines with '[rank N] '");
  parser->allow_extras(); // for a better error message

  const auto run = [arguments, parser, &program]() {
    if (const auto extras = parser->remaining(); !extras.empty()) {
      throw CLI::ParseError(
          "launch: unexpected argument '" + extras.front() +
              "'; the program to start goes after '--'",
          CLI::ExitCodes::ExtrasError);
    }
    if (program.empty()) {
      throw CLI::RequiredError("launch: PROGRAM after '--'");
    }
    runtime::LaunchOptions& chosen = arguments->options;
    chosen.command = program;
    chosen.prefix = !arguments->bare_lines;
    chosen.grace = std::chrono::milliseconds(
        static_cast<std::int64_t>(arguments->grace_seconds * 1000));
    return launch(chosen);
  };
  return {parser, run};
}

} // namespace tessera::tools
