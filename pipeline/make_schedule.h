// SPDX-License-Identifier: Apache-2.0
#pragma once
// The schedules that Tessera has.

#include "tessera/pipeline/pipeline_schedule.h"

#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// With p stages, m micro-batches, v chunks, and a micro-batch taking F forward
/// and B backward on a whole stage; bubble = idle time of a stage. "Stored" are
/// the micro-batches, of one chunk each, whose activations a stage keeps.
enum class PipelineScheduleKind {
  /// All forwards, then all backwards (arXiv:1811.06965). Bubble (p-1)(F+B);
  /// stored m.
  kGPipe,
  /// As soon as a stage can it alternates one forward and one backward
  /// (PipeDream-Flush, arXiv:2006.09503). The same bubble; stage s stores
  /// min(m, p-s).
  kOneForwardOneBackward,
  /// The same over v chunks in each stage (arXiv:2104.04473). Bubble
  /// (p-1)(F+B)/v; stage s stores min(mv, 2(p-s-1) + (v-1)p + 1) chunks.
  /// m has to be a multiple of p.
  kInterleaved,
  /// ZB-H1 (arXiv:2401.10241): a backward gives the input's gradient first, and
  /// the weights' ones fill what would be bubble. With B = I + W, bubble
  /// (p-1)(F+I-W) while the times are about equal and m >= p; every stage
  /// stores min(m, p), as much as the first one does in 1F1B.
  kZeroBubble,
};

/// Their names in a configuration: gpipe, 1f1b, interleaved, zb-h1.
const std::vector<std::pair<std::string, PipelineScheduleKind>>&
pipeline_schedule_names();

/// Deterministic: the same on every rank.
/// @throws Error when a size is below 1, more than one chunk is wanted of a
///     schedule that has one only, or interleaving gets a number of
///     micro-batches that its stages do not divide; with the numbers that would
///     do.
PipelineSchedule make_schedule(
    PipelineScheduleKind kind,
    const PipelineShape& shape);

/// Forwards only, for evaluation: every stage computes what arrives, in runs of
/// as many micro-batches as there are stages for each chunk. Any number of
/// micro-batches will do.
/// @throws Error when a size is below 1.
PipelineSchedule make_forward_schedule(const PipelineShape& shape);

} // namespace tessera
