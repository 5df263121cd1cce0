// SPDX-License-Identifier: Apache-2.0
#pragma once
// `search_plans()` plans a training run in many layouts and finds those that
// fit and are fast.

#include "plan/machine.h"
#include "plan/step_time.h"

#include "tessera/engine/plan/step_plan.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace tessera::tools {

/// A way to run a configuration.
struct PlannedRun {
  /// `key.path=value` each, beside those that were given.
  std::vector<std::string> overrides;
  std::string layout; ///< "shard 4, tensor 2"
  int64_t batch_size = 0; ///< of a rank and micro-batch
  int64_t accumulate = 0;
  int64_t recomputed_layers = 0;
  /// Of the other layers: EngineOptions::recompute_operators, and on the CPU
  /// Recomputation::attention.
  bool recomputes_parts = false;
  bool is_offloaded = false; ///< state may rest in host memory
  /// Empty: it fits. Else what is wrong, in a line.
  std::string problem;
  std::vector<StepMemoryPlan> stages; ///< empty if it was refused
  int64_t device_bytes = 0; ///< the highest peak of a pipeline stage
  int64_t host_bytes = 0; ///< of a rank
  StepTime time;
  double tokens_per_s = 0; ///< of the job
  double flops = 0; ///< of a step, on a rank of the first stage

  bool fits() const {
    return problem.empty();
  }
  /// "17+parts": recomputed_layers, recomputes_parts.
  std::string recomputed() const;
};

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
/// pipeline stages, larger micro-batches while they fit, optimizer state in
/// host memory where nothing else fits, each with as few recomputed layers as
/// fit, with parts of the other layers recomputed where that is faster. Takes
/// seconds for each.
/// @throws tessera::Error on a configuration that cannot be read.
std::vector<PlannedRun> search_plans(const PlanSearch& search);

/// The fastest of those that fit; null if none does.
const PlannedRun* best_of(const std::vector<PlannedRun>& runs);

} // namespace tessera::tools
