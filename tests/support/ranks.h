// SPDX-License-Identifier: Apache-2.0
#pragma once
// Multi-rank tests: every rank is a forked process with a World over a file
// store, so that no port is needed.

#include "tessera/runtime/comm/init.h"

#include <chrono>
#include <functional>
#include <string>

namespace tessera::tests {

/// How one rank ended.
struct RankResult {
  int exit_code = -1; ///< 0 = no assertion failed; 128 + n for signal n
  std::string output; ///< what it wrote to standard error
};

struct RankOptions {
  /// Ranks that have not ended by then are killed and fail the test.
  std::chrono::seconds limit{60};
  /// InitOptions::timeout of every rank.
  std::chrono::milliseconds collective_timeout{20000};
};

/// Forks `world_size` ranks, runs `body` in each, and fails the calling test
/// when a rank had a failed assertion, an exception or a signal. The parent
/// must not have run threaded LibTorch code before (call it first in a TEST).
void run_ranks(
    int world_size,
    const std::function<void(World&)>& body,
    const RankOptions& options = {});

/// As run_ranks(), but expects nothing: returns how each rank ended.
std::vector<RankResult> run_ranks_expecting(
    int world_size,
    const std::function<void(World&)>& body,
    const RankOptions& options = {});

} // namespace tessera::tests
