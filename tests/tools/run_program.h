// SPDX-License-Identifier: Apache-2.0
#pragma once
// A program as a user runs it.

#include "support/launched_job.h"
#include "support/paths.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::tests {

/// Runs a program to its end.
/// @param arguments the program's path first.
/// @param folder that it runs in; empty: this one.
inline LaunchedJob::Result run_program(
    const std::vector<std::string>& arguments,
    const std::filesystem::path& folder = {}) {
  LaunchedJob job([&] {
    if (!folder.empty()) {
      std::filesystem::current_path(folder);
    }
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

/// `tessera`, over so many ranks.
inline LaunchedJob::Result run_tessera(
    int ranks,
    const std::vector<std::string>& words) {
  std::vector<std::string> arguments{tests::program("tessera")};
  if (ranks > 1) {
    arguments.insert(
        arguments.end(),
        {"launch",
         "--nproc",
         std::to_string(ranks),
         "--",
         tests::program("tessera")});
  }
  arguments.insert(arguments.end(), words.begin(), words.end());
  return run_program(arguments);
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

/// The losses that the log of `tessera train` has.
inline std::vector<double> losses_of(const std::filesystem::path& run_folder) {
  std::ifstream lines(run_folder / "metrics.jsonl");
  std::vector<double> losses;
  for (std::string line; std::getline(lines, line);) {
    losses.push_back(nlohmann::json::parse(line).at("loss"));
  }
  return losses;
}

} // namespace tessera::tests
