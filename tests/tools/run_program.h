// SPDX-License-Identifier: Apache-2.0
#pragma once
// A program as a user runs it.

#include "support/launched_job.h"

#include <unistd.h>

#include <string>
#include <vector>

namespace tessera::testing {

/// Runs a program to its end.
/// @param arguments the program's path first.
inline LaunchedJob::Result run_program(
    const std::vector<std::string>& arguments) {
  LaunchedJob job([&arguments] {
    std::vector<char*> argv;
    for (const std::string& argument : arguments) {
      argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    ::execv(argv.front(), argv.data());
    return 127;
  });
  return job.wait();
}

} // namespace tessera::testing
