// SPDX-License-Identifier: Apache-2.0
#pragma once
// Cross-entropy of logits that are divided over a tensor-parallel group.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/parallel/dim_split.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

enum class LossReduction {
  kNone, ///< one number for each token
  kSum,
  kMean, ///< over tokens that are not ignored; NaN when there is none
};

struct VocabParallelLossOptions {
  /// The share of the target that is spread over the whole vocabulary.
  double label_smoothing = 0;
  /// Targets that count for nothing.
  int64_t ignore_index = -100;
  /// Weight of the squared logarithm of the softmax's denominator, which keeps
  /// logits small (arXiv:2204.02311).
  double z_loss = 0;
  LossReduction reduction = LossReduction::kMean;
};

/// Softmax cross-entropy without gathering the logits. With lse = log of the
/// sum of exp(logits) over the whole vocabulary V, x_t the target's logit and
/// e = label_smoothing, a token's loss is
///
///     lse - (1 - e) x_t - e / V * (sum of all logits) + z_loss * lse^2
///
/// Each rank sends three numbers for each token, in one all-gather; backward
/// sends nothing. Beside the logits and their gradient it takes memory for some
/// rows in float32 (float64 for such logits) at a time.
///
/// @param logits [..., this rank's tokens], floating point; not changed.
/// @param target [...], int64, the same on all ranks.
/// @param vocab how the vocabulary is divided over `group`.
/// @return in float32 or float64, the same bits on all ranks.
/// Collective, blocks. Once differentiable. `group` outlives the graph.
/// @throws tessera::Error when shapes do not fit each other or the split, or a
///     target is neither a token nor ignored.
at::Tensor vocab_parallel_cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& target,
    const DimSplit& vocab,
    Communicator& group,
    const VocabParallelLossOptions& options = {});

} // namespace tessera
