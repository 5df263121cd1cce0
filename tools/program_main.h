// SPDX-License-Identifier: Apache-2.0
#pragma once
// The commands of tessera-run, the program that contains all commands that need
// LibTorch.

#include <CLI/CLI.hpp>

#include <functional>
#include <optional>
#include <string>

namespace tessera::tools {

/// Parses the command line. Returns the exit code if the program is to exit: 0
/// after help or --check was requested, 2 on a usage error.
/// @param check called for --check: what is known to be wrong before the
/// command
///     does anything; throws.
std::optional<int> parse_arguments(
    CLI::App& app,
    int argc,
    char** argv,
    const std::function<void()>& check = {});

/// @throws tessera::Error in a job of several processes, for a command that
///     runs as one.
void check_one_process(const char* command);

/// Runs the command that argv[1] names, with what follows. An exception becomes
/// one line on standard error.
/// @return the exit code: 1 after an exception.
int run_command(int argc, char** argv);

/// The implementations of the commands. Each returns the exit code of its
/// process.
int run_keys(int argc, char** argv);
int run_train(int argc, char** argv);
int run_export(int argc, char** argv);
int run_eval(int argc, char** argv);
int run_logits(int argc, char** argv);
int run_generate(int argc, char** argv);
int run_convert(int argc, char** argv);
int run_bench(int argc, char** argv);
int run_bench_comm(int argc, char** argv);
int run_inspect(int argc, char** argv);
int run_predict(int argc, char** argv);
int run_fetch(int argc, char** argv);
int run_tokens(int argc, char** argv);
int run_tokenize(int argc, char** argv);
int run_plan(int argc, char** argv);

} // namespace tessera::tools
