// SPDX-License-Identifier: Apache-2.0
#pragma once
// `with_transfers()` turns lists of computations into a complete schedule.

#include "tessera/pipeline/pipeline_schedule.h"

namespace tessera::pipeline {

/// Adds the transfers between pipeline stages, and a reduction of gradients
/// right after the last gradient of each chunk.
///
/// It simulates the computations, with a backward that takes as long as two
/// forwards, and puts both ends of a transfer where their pipeline stages are
/// when the data is ready: after the computation that runs then. The order of
/// that simulation is one in which everything can be executed one after the
/// other, so the result cannot deadlock, and each direction between two
/// pipeline stages is received in the order in which it is sent.
/// @param computations lists without transfers and reductions.
/// @throws tessera::Error if computations wait for each other in a cycle,
///   naming those that never start.
PipelineSchedule with_transfers(const PipelineSchedule& computations);

} // namespace tessera::pipeline
