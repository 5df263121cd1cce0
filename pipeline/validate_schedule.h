// SPDX-License-Identifier: Apache-2.0
#pragma once
// `validate_schedule()` proves that a schedule does all of the work, in order,
// and terminates.

#include "tessera/pipeline/pipeline_schedule.h"

#include <vector>

namespace tessera::pipeline {

struct ScheduleFacts {
  /// By pipeline stage: the most micro-batches of one chunk whose activations
  /// exist at the same time, from their forward until their (weight) gradients.
  std::vector<int> peak_stored;
};

/// Checks that every piece computes each micro-batch forward and, in training,
/// backward once, after its input and its gradient have arrived; that what the
/// neighbors need is sent once, and received in the order in which it is sent;
/// that the gradients of each chunk are reduced once, when they are complete;
/// and that no pipeline stage waits forever even if a send is done only when it
/// is received ([Note: transfers between stages] in pipeline_schedule.h).
/// @throws tessera::Error naming the pipeline stage, the instruction and what
///   is wrong with it; for a deadlock, what every pipeline stage waits for.
ScheduleFacts validate_schedule(const PipelineSchedule& schedule);

} // namespace tessera::pipeline
