// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a subcommand of the tessera program is. Each has a file of its own,
// with one function that adds it, and a line in main.cpp's table.

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

namespace tessera::tools {

struct Command {
  /// Parses the subcommand's own arguments.
  CLI::App* parser = nullptr;
  /// Runs it, after parsing, and returns the exit code of the program.
  /// @throws CLI::ParseError on a usage error, Error on any other.
  std::function<int()> run;
};

/// `tessera launch [OPTIONS] -- PROGRAM [ARGS...]`
/// @param program what followed "--" on the command line; outlives the command.
Command add_launch_command(
    CLI::App& app,
    const std::vector<std::string>& program);

/// `tessera NAME ARGS...` for a program tessera-NAME in the same folder, which
/// takes this process over.
Command add_program_command(
    CLI::App& app,
    const std::string& name,
    const std::string& description);

} // namespace tessera::tools
