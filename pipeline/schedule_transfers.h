// SPDX-License-Identifier: Apache-2.0
#pragma once
// Turns the order of computations into a whole schedule.

#include "tessera/pipeline/pipeline_schedule.h"

namespace tessera {

/// Adds the transfers between stages, and a reduction of gradients right after
/// the last gradient of each chunk.
///
/// It carries the computations out on paper, with a backward of two forwards'
/// time, and puts both ends of a transfer where their stages are at the moment
/// the data is there: behind the computation that runs then. The order of that
/// run is one in which everything can be carried out one after the other, so
/// the result cannot deadlock, and one direction between two stages is received
/// in the order in which it is sent.
///
/// @param computations lists without transfers and reductions.
/// @throws Error when the computations wait for each other in a circle, naming
///     the ones that never start.
PipelineSchedule with_transfers(const PipelineSchedule& computations);

} // namespace tessera
