// SPDX-License-Identifier: Apache-2.0
#include "command.h"
#include "usage_error.h"

#include "tessera/runtime/launch/launch.h"
#include "tessera/runtime/launch/node_environment.h"

#include <chrono>
#include <cstdlib>
#include <memory>

namespace tessera::tools {

namespace {

struct Arguments {
  runtime::LaunchOptions options;
  runtime::LaunchVariables variables;
  double grace_seconds = 5;
  double timeout_seconds = 600;
  double node_timeout_seconds = 30;
  bool bare_lines = false;
  bool checks_only = false;
};

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

std::optional<std::string> variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

/// Where the ranks of this launcher are, by options and environment.
void place_ranks(
    const runtime::LaunchVariables& given,
    runtime::LaunchOptions& options) {
  const auto variables = runtime::complete_launch_variables(given, variable);
  if (!variables.nproc) {
    throw CLI::RequiredError("--nproc");
  }
  options.nproc = *variables.nproc;
  options.nodes.count = *variables.nnodes;
  options.nodes.rank = *variables.node_rank;
  options.nodes.master_addr = variables.master_addr.value_or("");
  options.nodes.master_port =
      variables.master_port.value_or(options.nodes.master_port);
}

void add_node_options(CLI::App& parser, Arguments& arguments) {
  constexpr int kMaxPort = 65535;
  constexpr int kMaxNodes = 65536;
  constexpr double kMaxSeconds = 864000;
  parser
      .add_option(
          "--nnodes",
          arguments.variables.nnodes,
          "Number of nodes, each with a launcher of its own; default 1. "
          "Else from PET_NNODES, or srun with one task per node")
      ->check(CLI::Range(1, kMaxNodes));
  parser
      .add_option(
          "--node-rank",
          arguments.variables.node_rank,
          "Number of this node, from 0. Else from PET_NODE_RANK, "
          "SLURM_NODEID or JOB_COMPLETION_INDEX")
      ->check(CLI::Range(0, kMaxNodes - 1));
  parser.add_option(
      "--master-addr",
      arguments.variables.master_addr,
      "Address of node 0, the same on all nodes. Else from PET_MASTER_ADDR, "
      "MASTER_ADDR, or the first node of srun");
  parser
      .add_option(
          "--master-port",
          arguments.variables.master_port,
          "TCP port where the launcher of node 0 listens for the others; "
          "default 29500. Else from PET_MASTER_PORT, MASTER_PORT, or srun's "
          "numbers")
      ->check(CLI::Range(1, kMaxPort));
  parser
      .add_option(
          "--timeout",
          arguments.timeout_seconds,
          "Seconds for all nodes to join the job; default 600")
      ->check(CLI::Range(0.0, kMaxSeconds));
  parser
      .add_option(
          "--node-timeout",
          arguments.node_timeout_seconds,
          "Seconds after which a node that is not heard of counts as lost; "
          "default 30")
      ->check(CLI::Range(3.0, kMaxSeconds));
}

} // namespace

Command add_launch_command(
    CLI::App& app,
    const std::vector<std::string>& program) {
  auto* parser = app.add_subcommand(
      "launch",
      "Start ranks of a program on this host:\n"
      "  tessera launch --nproc N [OPTIONS] -- PROGRAM [ARGS...]\n"
      "or, run once on each of several hosts, ranks on all of them:\n"
      "  tessera launch --nnodes M --node-rank R --master-addr HOST "
      "--nproc N -- PROGRAM\n"
      "Sets torchrun's environment variables. If one rank fails, the others are "
      "ended, on all hosts.");
  auto arguments = std::make_shared<Arguments>();
  runtime::LaunchOptions& options = arguments->options;
  constexpr int kMaxPort = 65535;
  constexpr int kMaxRanks = 65536;
  constexpr int kMaxRestarts = 1000000;
  constexpr double kMaxGraceSeconds = 86400;
  parser
      ->add_option(
          "--nproc,--nproc-per-node",
          arguments->variables.nproc,
          "Number of ranks to start on each host. Else from "
          "PET_NPROC_PER_NODE")
      ->check(CLI::Range(1, kMaxRanks));
  add_node_options(*parser, *arguments);
  parser
      ->add_option(
          "--max-restarts",
          options.max_restarts,
          "How many times all ranks are started again after one has failed; "
          "default 0. Have them resume: training.resume=true")
      ->check(CLI::Range(0, kMaxRestarts));
  parser
      ->add_option(
          "--port",
          options.port,
          "TCP port on node 0 where the ranks meet; 0, the default, picks a "
          "free one")
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
  parser->add_flag("--check", arguments->checks_only, kCheckHelp);
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
    chosen.grace = milliseconds_of(arguments->grace_seconds);
    chosen.nodes.timeout = milliseconds_of(arguments->timeout_seconds);
    chosen.nodes.silence = milliseconds_of(arguments->node_timeout_seconds);
    place_ranks(arguments->variables, chosen);
    return arguments->checks_only ? 0 : launch(chosen);
  };
  return {parser, run};
}

} // namespace tessera::tools
