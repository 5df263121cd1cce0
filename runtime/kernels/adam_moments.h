// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AdamMoments` computes the moments and the denominator of AdamW and LAMB with
// the vectors of an instruction set. Only the per-ISA sources include it; see
// vec_loop.h and [Note: the bits of AdamW].

#include "tessera/runtime/kernels/adamw_shard.h"

namespace tessera::runtime::detail {

template <typename Vec>
struct AdamMoments {
  using T = typename Vec::Scalar;

  Vec beta1;
  Vec one_minus_beta1;
  Vec beta2;
  Vec one_minus_beta2;
  Vec sqrt_bias_correction2;
  Vec eps;

  explicit AdamMoments(const AdamScalars<T>& s)
      : beta1(Vec::broadcast(s.beta1)),
        one_minus_beta1(Vec::broadcast(s.one_minus_beta1)),
        beta2(Vec::broadcast(s.beta2)),
        one_minus_beta2(Vec::broadcast(s.one_minus_beta2)),
        sqrt_bias_correction2(Vec::broadcast(s.sqrt_bias_correction2)),
        eps(Vec::broadcast(s.eps)) {}

  void update(Vec grad, Vec& exp_avg, Vec& exp_avg_sq) const {
    exp_avg = fma(grad, one_minus_beta1, exp_avg * beta1);
    exp_avg_sq = fma(one_minus_beta2 * grad, grad, exp_avg_sq * beta2);
  }

  /// @param root the square root of exp_avg_sq.
  Vec denominator(Vec root) const {
    return root / sqrt_bias_correction2 + eps;
  }
};

} // namespace tessera::runtime::detail
