// SPDX-License-Identifier: Apache-2.0
#pragma once
// report_usage() reports a command line that could not be parsed.

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace tessera::tools {

/// The exit code of a command line that could not be parsed.
inline constexpr int kUsageError = 2;

/// Prints the problem with a command line that `app` did not parse, or the help
/// or version that was requested. An unknown option or command is reported
/// first, with the nearest existing name.
/// @param arguments without the program's name.
/// @return the exit code: kUsageError, or 0 for help and version.
int report_usage(
    const CLI::App& app,
    const CLI::ParseError& error,
    const std::vector<std::string>& arguments);

/// Of the flag that every command has.
inline constexpr char kCheckHelp[] =
    "Only check the arguments, and the configuration that they name";

} // namespace tessera::tools
