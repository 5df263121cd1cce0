// SPDX-License-Identifier: Apache-2.0
#pragma once
// Commands of tessera-run without a program: a test runs many of them.

#include "support/forked_ranks.h"

#include "program_main.h"

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

namespace tessera::tests {

/// A command of tessera-run as run_as_ranks().
inline LaunchedJob::Result run_forked(
    int ranks,
    const std::vector<std::string>& words) {
  return run_as_ranks(ranks, [&words] {
    std::vector<std::string> arguments{"tessera-run"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    std::vector<char*> argv;
    for (std::string& argument : arguments) {
      argv.push_back(argument.data());
    }
    argv.push_back(nullptr);
    const int code =
        tools::run_command(static_cast<int>(arguments.size()), argv.data());
    std::cout.flush();
    std::fflush(nullptr);
    return code;
  });
}

} // namespace tessera::tests
