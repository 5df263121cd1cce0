// SPDX-License-Identifier: Apache-2.0
#pragma once
// `lamb_moments_()` and `lamb_weights_()` are the two halves of a LAMB update.
// In between, the caller computes the norms of whole parameters, of which a
// rank holds only shards.

#include "tessera/runtime/kernels/lamb_rule.h"
#include "tessera/runtime/kernels/update_segments.h"

#include <span>

namespace tessera::runtime {

struct LambSegment {
  UpdateTensors tensors; ///< moment is exp_avg, moment_sq is exp_avg_sq
  AdamWStep step; ///< weight_decay is part of the direction
  /// For lamb_weights_(): [] float64 on the device of the tensors, or undefined
  /// for 1. The learning rate is multiplied by it.
  at::Tensor lr_factor;
};

/// Updates both moments of every run, and sets sums[i][0] to the sum of squares
/// of its weights and sums[i][1] to that of its direction (arXiv:1904.00962,
/// Alg. 2):
///
///   exp_avg, exp_avg_sq as in AdamW
///   d = (exp_avg / (1 - beta1^step)) / (sqrt(exp_avg_sq) /
///       sqrt(1 - beta2^step) + eps) + weight_decay * master
///
/// @param sums [runs, 2] float64, contiguous, on the device of the runs.
/// @return as update_segments_().
/// @throws tessera::Error as update_segments_().
///
/// On CPU it blocks; on CUDA it runs on the current stream. The sums do not
/// depend on the number of threads.
bool lamb_moments_(
    std::span<const LambSegment> segments,
    const at::Tensor& sums);

/// master -= lr * d, with the same d; low_precision receives it rounded. On CPU
/// it blocks; on CUDA it runs on the current stream.
void lamb_weights_(std::span<const LambSegment> segments);

} // namespace tessera::runtime
