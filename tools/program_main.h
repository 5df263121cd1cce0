// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the programs behind the subcommands share.

#include <CLI/CLI.hpp>

#include <functional>
#include <optional>

namespace tessera {

/// Parses the command line. Returns the exit code when the program is to end:
/// help was asked for (0) or the usage is wrong (2).
std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv);

/// Runs a program's body: an exception becomes one line on standard error and
/// exit code 1. LibTorch's own errors are shown without their stack trace.
int guarded_main(const std::function<int()>& body);

} // namespace tessera
