// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs of `tessera train` and what they leave.

#include "support/paths.h"
#include "tools/run_program.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tessera {

using tests::losses_of;

/// From the root of the source tree.
/// @param arguments the program's path first.
inline tests::LaunchedJob::Result run(
    const std::vector<std::string>& arguments) {
  return tests::run_program(arguments, tests::source_dir());
}

/// A few texts, so that a whole run takes seconds.
inline void write_examples(const std::filesystem::path& path) {
  std::ofstream out(path);
  for (int i = 0; i < 12; ++i) {
    out << "{\"text\": \"a game of cards\", \"label\": \"games\"}\n"
        << "{\"text\": \"a mail server\", \"label\": \"net\"}\n";
  }
}

} // namespace tessera
