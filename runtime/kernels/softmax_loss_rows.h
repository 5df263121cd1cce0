// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SoftmaxLossRows` is the argument of the kernels of [Note: softmax loss].
// Plain C++: CUDA sources and the per-ISA sources include it.

#include "tessera/runtime/kernels/low_precision.h"

#include <cstdint>

namespace tessera::runtime {

struct SoftmaxLossRows {
  void* logits; ///< [rows, columns]; becomes the gradient if `gradients`
  LowPrecision type; ///< of the logits; kNone: float32
  int64_t rows;
  int64_t classes; ///< the first columns; the gradient of the rest is zero
  int64_t columns;
  int64_t row_stride; ///< elements from one row to the next
  const int64_t* targets; ///< [rows]
  const float* class_weights; ///< [classes]; null: ones
  const float* scale; ///< one number, by which gradients are multiplied
  float* losses; ///< [rows], written; 0 where the target is ignored
  int64_t ignore_index;
  float label_smoothing;
  float z_loss;
  bool gradients;
};

/// The numbers of a row from which its loss and its gradient follow.
struct SoftmaxLossSums {
  float max; ///< of the logits
  float sum; ///< of exp(logit - max)
  float weighted = 0; ///< of logits times class weights; with smoothing only
  float weights = 0; ///< of class weights; with smoothing only
};

/// With p the softmax, gradient j is softmax p_j - spread w_j, and that of the
/// target less by `target`; all include SoftmaxLossRows::scale.
struct SoftmaxLossFactors {
  float loss;
  float exponential; ///< of exp(logit - max): softmax / sum
  float spread;
  float target;
};

// With internal linkage, see vec_loop.h.
namespace {

#if defined(__CUDACC__)
__device__
#endif
    inline SoftmaxLossFactors
    softmax_loss_factors(
        const SoftmaxLossRows& in,
        const SoftmaxLossSums& row,
        float log_sum, ///< log(row.sum)
        float target_logit,
        float target_weight) {
  const float lse = row.max + log_sum;
  const float keep = (1 - in.label_smoothing) * target_weight;
  // In this order: the sum of a large maximum and log_sum would be rounded.
  float loss = keep * ((row.max - target_logit) + log_sum);
  float factor = keep;
  float spread = 0;
  if (in.label_smoothing != 0) {
    spread = in.label_smoothing / static_cast<float>(in.classes);
    loss += spread * (row.weights * lse - row.weighted);
    factor += spread * row.weights;
  }
  if (in.z_loss != 0) {
    const float z_loss = in.z_loss * target_weight;
    loss += z_loss * lse * lse;
    factor += 2 * z_loss * lse;
  }
  const float scale = *in.scale;
  return {loss, scale * factor / row.sum, scale * spread, scale * keep};
}

} // namespace

} // namespace tessera::runtime
