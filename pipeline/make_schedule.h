// SPDX-License-Identifier: Apache-2.0
#pragma once
// `make_schedule()` makes the pipeline schedules that Tessera supports.

#include "tessera/pipeline/pipeline_schedule.h"

#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// With p pipeline stages, m micro-batches, v chunks, and a micro-batch taking
/// F forward and B backward on a whole pipeline stage; bubble = idle time of a
/// pipeline stage. "Stored" counts the micro-batches, of one chunk each, whose
/// activations a pipeline stage keeps.
enum class PipelineScheduleKind {
  /// All forwards, then all backwards (arXiv:1811.06965). Bubble (p-1)(F+B);
  /// stored m.
  kGPipe,
  /// Alternates one forward and one backward as soon as a pipeline stage can
  /// (PipeDream-Flush, arXiv:2006.09503). The same bubble; pipeline stage s
  /// stores min(m, p-s).
  kOneForwardOneBackward,
  /// The same over v chunks per pipeline stage (arXiv:2104.04473). Bubble
  /// (p-1)(F+B)/v; pipeline stage s stores min(mv, 2(p-s-1) + (v-1)p + 1)
  /// chunks. m must be a multiple of p.
  kInterleaved,
  /// ZB-H1 (arXiv:2401.10241): a backward computes the gradient of the input
  /// first, and the gradients of weights fill what would be bubble. With B = I
  /// + W, bubble (p-1)(F+I-W) as long as the times are about equal and m >= p;
  /// every pipeline stage stores min(m, p), as much as the first one does in
  /// 1F1B.
  kZeroBubble,
};

/// The names in a configuration: gpipe, 1f1b, interleaved, zb-h1.
const std::vector<std::pair<std::string, PipelineScheduleKind>>&
pipeline_schedule_names();

/// Deterministic: the same on every rank.
/// @throws tessera::Error if a size is below 1, a schedule of one chunk is
///   asked for several, or interleaving gets a number of micro-batches that is
///   not a multiple of the pipeline stages; the message names numbers that fit.
PipelineSchedule make_schedule(
    PipelineScheduleKind kind,
    const PipelineShape& shape);

/// Forwards only, for evaluation: every pipeline stage computes what arrives,
/// in runs of as many micro-batches as there are pipeline stages for each
/// chunk. Works for any number of micro-batches.
/// @throws tessera::Error if a size is below 1.
PipelineSchedule make_forward_schedule(const PipelineShape& shape);

} // namespace tessera
