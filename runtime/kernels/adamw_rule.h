// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AdamWStep` and `AdamWRule` are the hyperparameters and the arithmetic of
// AdamW and of Adam; `AdamMoments` is what LAMB has in common with them. See
// update_rules.h.
//
// [Note: the bits of AdamW] torch::optim::AdamW runs one ATen operator after
// another. The AVX2 and AVX-512 builds of ATen's CPU kernels, compared value by
// value with the operators of LibTorch 2.11, do the following, in the vector
// body and in the tail alike, at any offset:
//   add_(g, alpha)        one fma: fma(g, alpha, m)
//   addcmul_(g, g, value) one multiplication, one fma: fma(value * g, g, v)
//   addcdiv_(m, d, value) not fused: p + (value * m) / d
//   div by a scalar       a true division, not a product with its inverse
//   scalars               rounded from double to the tensor's type, once
// ATen's baseline build (ATEN_CPU_CAPABILITY=default, or a processor without
// AVX2) fuses nothing and gives different bits; the kernels here always do the
// above. sqrt is the exception: ATen calls a vector math library, which on some
// processors is off by one unit in the last place. Here it is correctly rounded
// (IEEE 754): the same bits on every machine, on CPU and on CUDA. NaNs appear
// in the same places, but their bits may differ.

#include "tessera/runtime/kernels/flat_shard.h"

#include <cmath>
#include <cstdint>

namespace tessera::runtime {

template <typename T>
struct AdamWRule;

/// The hyperparameters of one step. `step` counts from 1.
struct AdamWStep {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  /// True: weights shrink by lr * weight_decay (AdamW). False: weight_decay *
  /// weight is added to the gradient (Adam with L2 regularization).
  bool decoupled_decay = true;
  int64_t step = 1;
  /// The gradient is multiplied by this first, for clipping and averaging; a
  /// factor of 1 changes no bit.
  double grad_scale = 1.0;
  StochasticRounding rounding;

  template <typename T>
  using Rule = AdamWRule<T>;
  static constexpr const char* kName = "adamw_";

  int states() const {
    return 2;
  }
  template <typename Checks>
  void check(const Checks& checks) const {
    checks.not_negative("lr", lr);
    checks.not_negative("eps", eps);
    checks.not_negative("weight_decay", weight_decay);
    checks.in_unit_interval("beta1", beta1);
    checks.in_unit_interval("beta2", beta2);
    checks.counts_from_one(step);
  }
};

/// The moments and the denominator of Adam's family. Constants are computed in
/// double and narrowed to the master's type where LibTorch narrows them.
template <typename T>
struct AdamMoments {
  T grad_scale;
  T beta1;
  T one_minus_beta1;
  T beta2;
  T one_minus_beta2;
  T sqrt_bias_correction2;
  T eps;

  explicit AdamMoments(const AdamWStep& step)
      : grad_scale(static_cast<T>(step.grad_scale)),
        beta1(static_cast<T>(step.beta1)),
        one_minus_beta1(static_cast<T>(1 - step.beta1)),
        beta2(static_cast<T>(step.beta2)),
        one_minus_beta2(static_cast<T>(1 - step.beta2)),
        sqrt_bias_correction2(
            static_cast<T>(std::sqrt(bias_correction(step.beta2, step.step)))),
        eps(static_cast<T>(step.eps)) {}

  template <typename Vec>
  TESSERA_DEVICE void update_moments(Vec grad, Vec& exp_avg, Vec& exp_avg_sq)
      const {
    exp_avg = fma(grad, one_minus_beta1, exp_avg * beta1);
    exp_avg_sq = fma(one_minus_beta2 * grad, grad, exp_avg_sq * beta2);
  }
  template <typename Vec>
  TESSERA_DEVICE Vec denominator(Vec exp_avg_sq) const {
    return sqrt(exp_avg_sq) / sqrt_bias_correction2 + eps;
  }
};

template <typename T>
struct AdamWRule : AdamMoments<T> {
  static constexpr int kStates = 2; // exp_avg, exp_avg_sq

  T decay; // 1 - lr * weight_decay; 1 if decay is not decoupled
  T l2; // weight_decay if decay is not decoupled
  T minus_step_size; // -lr / (1 - beta1^step)
  bool has_l2;

  explicit AdamWRule(const AdamWStep& step)
      : AdamMoments<T>(step),
        decay(static_cast<T>(
            step.decoupled_decay ? 1 - step.lr * step.weight_decay : 1)),
        l2(static_cast<T>(step.decoupled_decay ? 0 : step.weight_decay)),
        minus_step_size(static_cast<T>(
            -(step.lr / bias_correction(step.beta1, step.step)))),
        has_l2(l2 != 0) {}

  template <typename Vec>
  TESSERA_DEVICE void update(Vec& master, Vec grad, Vec (&state)[2]) const {
    auto& [exp_avg, exp_avg_sq] = state;
    if (has_l2) {
      grad = fma(master, l2, grad);
    }
    this->update_moments(grad, exp_avg, exp_avg_sq);
    master = master * decay +
             minus_step_size * exp_avg / this->denominator(exp_avg_sq);
  }
};

template <typename T>
using AdamWShard = UpdateShard<T, AdamWRule<T>>;

} // namespace tessera::runtime
