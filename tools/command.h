// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Command` is a subcommand of the `tessera` program. Each has its own file
// with one function that adds it, and a row in main.cpp's table.

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

namespace tessera::tools {

struct Command {
  /// Parses the subcommand's own arguments.
  CLI::App* parser = nullptr;
  /// Runs the subcommand after parsing; returns the program's exit code.
  /// @throws CLI::ParseError on a usage error, Error on any other.
  std::function<int()> run;
};

/// `tessera launch [OPTIONS] -- PROGRAM [ARGS...]`
/// @param program the arguments after "--" on the command line; outlives the
///     command.
Command add_launch_command(
    CLI::App& app,
    const std::vector<std::string>& program);

/// `tessera NAME ARGS...`: replaces this process by the program tessera-NAME in
/// the same folder.
Command add_program_command(
    CLI::App& app,
    const std::string& name,
    const std::string& description);

} // namespace tessera::tools
