// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PlannedRun` is a way to run a configuration, with its memory and time.

#include "tessera/planner/search/recomputed_parts.h"
#include "tessera/planner/search/step_time.h"

#include "tessera/planner/step_plan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::planner {

struct PlannedRun {
  /// `key.path=value` each, beside those that were given.
  std::vector<std::string> overrides;
  /// Those of them that change what the configuration says.
  std::vector<std::string> changed;
  std::string layout; ///< "shard 4, tensor 2"
  int64_t batch_size = 0; ///< of a rank and micro-batch
  int64_t accumulate = 0;
  RecomputedParts recomputed;
  std::string residency; ///< "zero 3", or "budget": memory.device_bytes
  /// "optimizer", "activations", or both with a plus; empty: nothing
  std::string offloaded;
  /// Empty: it fits. Else what is wrong, in a line.
  std::string problem;
  std::vector<StepMemoryPlan> stages; ///< empty if it was refused
  int64_t device_bytes = 0; ///< the highest peak of a pipeline stage
  int64_t host_bytes = 0; ///< of a rank
  int64_t nvme_bytes = 0; ///< of a rank
  StepTime time;
  EstimatedRun estimated; ///< what `time` was estimated for
  double tokens_per_s = 0; ///< of the job; or examples
  bool counts_tokens = true;
  double flops = 0; ///< of a step, on a rank of the first stage
  /// It was not planned: its memory and time, which are bounds, come from plans
  /// of other runs, and are too long already.
  bool is_bound = false;

  bool fits() const {
    return problem.empty() && !is_bound;
  }
};

/// The fastest of those that fit; null if none does.
const PlannedRun* best_of(const std::vector<PlannedRun>& runs);

} // namespace tessera::planner
