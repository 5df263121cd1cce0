// SPDX-License-Identifier: Apache-2.0
#pragma once
// `simulate_schedule()` computes how long a schedule takes and how much of that
// is idle.

#include "tessera/pipeline/pipeline_schedule.h"

#include <vector>

namespace tessera::pipeline {

/// Times of one piece of the model for one micro-batch, in any one unit.
struct ModelChunkCost {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  /// Sending its output to the next piece, or the gradient of that output back.
  double transfer = 0;
};

struct SimulatedPipeline {
  double makespan = 0;
  /// The share of the time of all pipeline stages in which nothing is computed.
  double bubble_fraction = 0;
  /// Time spent computing, by pipeline stage.
  std::vector<double> busy;
  /// As ScheduleFacts::peak_stored, by pipeline stage.
  std::vector<int> peak_stored;
};

/// Simulates a schedule. A pipeline stage issues its transfers without waiting;
/// a computation waits for its inputs. A transfer starts when both ends are
/// issued and the one before it, between the same pipeline stages in the same
/// direction, is done. A whole backward takes as long as its two parts;
/// reductions of gradients take no time.
/// @param costs by piece; shape.model_chunks() of them.
/// @throws tessera::Error for a schedule that validate_schedule() rejects, a
///   wrong number of costs, or a cost that is negative or not a number.
SimulatedPipeline simulate_schedule(
    const PipelineSchedule& schedule,
    const std::vector<ModelChunkCost>& costs);

} // namespace tessera::pipeline
