// SPDX-License-Identifier: Apache-2.0
#pragma once
// `vocab_parallel_cross_entropy()` computes the cross-entropy of logits that
// are partitioned over a tensor-parallel group.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/tensors/dim_split.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

enum class LossReduction {
  kNone, ///< one value per token
  kSum,
  kMean, ///< over tokens that are not ignored; NaN if there are none
};

struct VocabParallelLossOptions {
  /// Share of the target distribution that is spread over the whole vocabulary.
  double label_smoothing = 0;
  /// Tokens with this target do not contribute to the loss.
  int64_t ignore_index = -100;
  /// Coefficient of the squared logarithm of the softmax denominator, which
  /// keeps logits small (arXiv:2204.02311).
  double z_loss = 0;
  LossReduction reduction = LossReduction::kMean;
};

/// Softmax cross-entropy without gathering the logits. With lse = log of the
/// sum of exp(logits) over the whole vocabulary V, x_t the target's logit and
/// e = label_smoothing, the loss of a token is
///
///     lse - (1 - e) x_t - e / V * (sum of all logits) + z_loss * lse^2
///
/// Each rank sends three numbers per token, in one all-gather; backward does
/// not communicate. Apart from the logits and their gradient, it needs memory
/// for a few rows at a time, in float32 (float64 for float64 logits).
///
/// @param logits [..., this rank's partition of the vocabulary], floating
///   point; not modified.
/// @param target [...], int64, equal on all ranks.
/// @param vocab how the vocabulary is partitioned over `group`.
/// @return in float32 or float64, bitwise equal on all ranks. Collective;
///   blocks. Differentiable once.
/// @throws tessera::Error when shapes do not match each other or the split, or
///   a target is neither a token nor ignored.
at::Tensor vocab_parallel_cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& target,
    const sharding::DimSplit& vocab,
    Communicator& group,
    const VocabParallelLossOptions& options = {});

/// As above for logits as a column-parallel layer returns them.
/// @param logits [..., vocabulary], divided along the last dimension
///   ([Note: DTensors]); or whole, as on one rank.
/// @throws tessera::Error when they are divided otherwise.
at::Tensor vocab_parallel_cross_entropy(
    const at::Tensor& logits,
    const at::Tensor& target,
    const VocabParallelLossOptions& options = {});

} // namespace tessera
