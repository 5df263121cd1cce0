// SPDX-License-Identifier: Apache-2.0
#pragma once
// `search_plans()` plans a training run in many layouts and finds those that
// fit and are fast.

#include "plan/machine.h"
#include "plan/planned_run.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace tessera::tools {

struct PlanSearch {
  std::filesystem::path config;
  std::vector<std::string> overrides;
  Machine machine;
  /// Only the layout that the configuration has.
  bool as_given = false;
  /// Called after each layout; may be empty.
  std::function<void(const PlannedRun& run)> tell;
};

/// The configuration as it is, first; then, unless PlanSearch::as_given, others
/// with the same number of examples per step: tensor ranks within a node,
/// pipeline stages, larger micro-batches while they fit, each with as little
/// repeated work as fits: cheap operators, attention where that saves memory,
/// and as few layers as are still needed, with divided inputs where sequences
/// cannot be. With host memory, optimizer state rests there where nothing else
/// fits, and that and activations are tried in place of recomputed parts. Where
/// all-gathers take longer than computation, so are ZeRO stages 2 and 1, and a
/// budget that keeps weights unsharded in what is left. Takes seconds for each.
/// @throws tessera::Error on a configuration that cannot be read.
std::vector<PlannedRun> search_plans(const PlanSearch& search);

} // namespace tessera::tools
