// SPDX-License-Identifier: Apache-2.0
#pragma once
// Proves that a schedule does all of the work, in order, and comes to an end.

#include "tessera/pipeline/pipeline_schedule.h"

#include <vector>

namespace tessera {

struct ScheduleFacts {
  /// By stage: most micro-batches of one chunk whose activations are there at
  /// the same time, from their forward until their (weight) gradients.
  std::vector<int> peak_stored;
};

/// Checks that every piece computes every micro-batch forward and, in training,
/// backward once, with its input and its gradient there and no sooner; that
/// what the neighbours need is sent once, and received in the order in which it
/// is sent; that each chunk's gradients are reduced once, when they are
/// complete; and that no stage waits forever even where a send is done only
/// when it is received ([Note: transfers between stages] in
/// pipeline_schedule.h).
///
/// @throws Error with the stage, the instruction and what is wrong with it; of
///     a deadlock, what every stage waits for.
ScheduleFacts validate_schedule(const PipelineSchedule& schedule);

} // namespace tessera
