// SPDX-License-Identifier: Apache-2.0
#pragma once
// `run_simulation()` is `tessera plan --simulate-world`: one rank of a job with
// numbers, beside its plan.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera::tools {

struct Simulation {
  std::filesystem::path config;
  std::vector<std::string> overrides;
  int world_size = 1;
  int rank = 0;
  std::optional<int64_t> memory_cap; ///< of a device
  int steps = 2;
  bool as_json = false;
};

/// Prints what was planned and what was measured.
/// @throws tessera::Error as zoo::simulate_training().
void run_simulation(const Simulation& simulation);

} // namespace tessera::tools
