// SPDX-License-Identifier: Apache-2.0
#pragma once
// How long a schedule takes, and where it stands idle.

#include "tessera/pipeline/pipeline_schedule.h"

#include <vector>

namespace tessera {

/// Of one piece of the model and one micro-batch; in any one unit of time.
struct PieceCost {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  /// Of sending its output to the next piece, or that output's gradient back.
  double transfer = 0;
};

struct SimulatedPipeline {
  double makespan = 0;
  /// The share of all stages' time in which nothing is computed.
  double bubble_fraction = 0;
  /// By stage: time spent computing.
  std::vector<double> busy;
  /// By stage: as ScheduleFacts has it.
  std::vector<int> peak_stored;
};

/// Carries a schedule out on paper. A stage issues its transfers without
/// waiting; a computation waits for what it needs. A transfer starts when both
/// ends are issued and the one before it, between the same stages in the same
/// direction, is done. A whole backward takes as long as its two parts;
/// reductions of gradients take no time.
///
/// @param costs by piece; shape.pieces() of them.
/// @throws Error for a schedule that validate_schedule() refuses, a wrong
///     number of costs, or one that is negative or not a number.
SimulatedPipeline simulate_schedule(
    const PipelineSchedule& schedule,
    const std::vector<PieceCost>& costs);

} // namespace tessera
