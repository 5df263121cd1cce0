// SPDX-License-Identifier: Apache-2.0
#pragma once
// The commands of tessera-run: those that need LibTorch.

#include <CLI/CLI.hpp>

#include <optional>

namespace tessera::tools {

/// Parses the command line. Returns the exit code when the program is to end:
/// help was asked for (0) or the usage is wrong (2).
std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv);

/// The bodies of the commands. Each returns the exit code of its process.
int run_train(int argc, char** argv);
int run_eval(int argc, char** argv);
int run_logits(int argc, char** argv);
int run_generate(int argc, char** argv);
int run_convert(int argc, char** argv);
int run_bench(int argc, char** argv);

} // namespace tessera::tools
