// SPDX-License-Identifier: Apache-2.0
#pragma once
// `lamb_moments_()` and `lamb_weights_()` are the two halves of a LAMB update.
// In between, the caller computes the norms of whole parameters, of which a
// rank holds only shards.

#include "tessera/runtime/kernels/update_runs.h"

#include <span>

namespace tessera::runtime {

struct LambRun {
  UpdateTensors tensors; ///< moment is exp_avg, moment_sq is exp_avg_sq
  AdamWStep step; ///< weight_decay is part of the direction
};

/// Updates both moments of every run, and adds the sum of squares of its
/// weights to sums[i][0] and that of its direction to sums[i][1]
/// (arXiv:1904.00962, Alg. 2):
///
///   exp_avg, exp_avg_sq as in adamw_()
///   d = (exp_avg / (1 - beta1^step)) / (sqrt(exp_avg_sq) /
///       sqrt(1 - beta2^step) + eps) + weight_decay * master
///
/// @param sums per run, the address of two numbers on the host.
/// @return as adamw_runs_().
/// @throws tessera::Error as adamw_runs_().
///
/// Blocks, also on CUDA. The sums do not depend on the number of threads.
bool lamb_moments_(
    std::span<const LambRun> runs,
    std::span<double* const> sums);

/// master -= lr * d, with the same d; low_precision receives it rounded. On CPU
/// it blocks; on CUDA it runs on the current stream.
void lamb_weights_(std::span<const LambRun> runs);

} // namespace tessera::runtime
