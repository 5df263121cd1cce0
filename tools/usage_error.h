// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is said about a command line that cannot be understood.

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace tessera::tools {

/// Prints what is wrong with a command line that `app` did not parse, or the
/// help or version that was asked for. An option or a command that does not
/// exist is named with the nearest that does, whatever else is missing.
/// @param arguments without the program's name.
/// @return the exit code: 2, or 0 for help and version.
int report_usage(
    const CLI::App& app,
    const CLI::ParseError& error,
    const std::vector<std::string>& arguments);

} // namespace tessera::tools
