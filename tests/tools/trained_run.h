// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs of `tessera train` and what they leave.

#include "support/launched_job.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tessera {

/// From the root of the source tree.
inline testing::LaunchedJob::Result run(
    const std::vector<std::string>& arguments) {
  testing::LaunchedJob job([&arguments] {
    std::filesystem::current_path(TESSERA_SOURCE_DIR);
    std::vector<char*> argv;
    for (const std::string& argument : arguments) {
      argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    ::execv(TESSERA_PROGRAM, argv.data());
    return 127;
  });
  return job.wait();
}

/// A few texts, so that a whole run takes seconds.
inline void write_examples(const std::filesystem::path& path) {
  std::ofstream out(path);
  for (int i = 0; i < 12; ++i) {
    out << "{\"text\": \"a game of cards\", \"label\": \"games\"}\n"
        << "{\"text\": \"a mail server\", \"label\": \"net\"}\n";
  }
}

/// The losses that a run's log has.
inline std::vector<double> losses_of(const std::filesystem::path& run_folder) {
  std::ifstream lines(run_folder / "metrics.jsonl");
  std::vector<double> losses;
  for (std::string line; std::getline(lines, line);) {
    losses.push_back(nlohmann::json::parse(line).at("loss"));
  }
  return losses;
}

} // namespace tessera
