// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AdanStep` and `AdanRule` are the hyperparameters and the arithmetic of Adan
// (arXiv:2208.06677, Alg. 1), with the bias corrections and the betas of the
// authors' program, which are 1 minus those of the paper. See update_rules.h.
//
//   diff = g - previous_grad                         (step 1: 0)
//   exp_avg = beta1 * exp_avg + (1 - beta1) * g
//   exp_avg_diff = beta2 * exp_avg_diff + (1 - beta2) * diff
//   a = g + beta2 * diff
//   exp_avg_sq = beta3 * exp_avg_sq + (1 - beta3) * a^2
//   d = (exp_avg / (1 - beta1^step)
//        + beta2 * exp_avg_diff / (1 - beta2^step))
//       / (sqrt(exp_avg_sq / (1 - beta3^step)) + eps)
//   master = (master - lr * d) / (1 + lr * weight_decay)
//   (no_prox: master = (1 - lr * weight_decay) * master - lr * d)
//   previous_grad = g

#include "tessera/runtime/kernels/flat_shard.h"

#include <cmath>
#include <cstdint>

namespace tessera::runtime {

template <typename T>
struct AdanRule;

/// The hyperparameters of one step. `step` counts from 1.
struct AdanStep {
  double lr = 1e-3;
  double beta1 = 0.98;
  double beta2 = 0.92;
  double beta3 = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  /// True: weights shrink by lr * weight_decay before the update. False: they
  /// are divided by 1 + lr * weight_decay after it.
  bool no_prox = false;
  int64_t step = 1;
  double grad_scale = 1.0; ///< the gradient is multiplied by this first
  StochasticRounding rounding;

  template <typename T>
  using Rule = AdanRule<T>;
  static constexpr const char* kName = "adan_";

  int states() const {
    return 4;
  }
  template <typename Checks>
  void check(const Checks& checks) const {
    checks.not_negative("lr", lr);
    checks.not_negative("eps", eps);
    checks.not_negative("weight_decay", weight_decay);
    checks.in_unit_interval("beta1", beta1);
    checks.in_unit_interval("beta2", beta2);
    checks.in_unit_interval("beta3", beta3);
    checks.counts_from_one(step);
  }
};

template <typename T>
struct AdanRule {
  // exp_avg, exp_avg_sq, exp_avg_diff, previous_grad (after grad_scale)
  static constexpr int kStates = 4;

  T grad_scale;
  T beta1;
  T one_minus_beta1;
  T beta2;
  T one_minus_beta2;
  T beta3;
  T one_minus_beta3;
  T sqrt_bias_correction3;
  T eps;
  T minus_step_size; // -lr / (1 - beta1^step)
  T minus_step_size_diff; // -lr * beta2 / (1 - beta2^step)
  T decay; // 1 - lr * weight_decay with no_prox, else 1
  T divisor; // 1 + lr * weight_decay, 1 with no_prox
  bool is_first; // there is no previous gradient

  explicit AdanRule(const AdanStep& step)
      : grad_scale(static_cast<T>(step.grad_scale)),
        beta1(static_cast<T>(step.beta1)),
        one_minus_beta1(static_cast<T>(1 - step.beta1)),
        beta2(static_cast<T>(step.beta2)),
        one_minus_beta2(static_cast<T>(1 - step.beta2)),
        beta3(static_cast<T>(step.beta3)),
        one_minus_beta3(static_cast<T>(1 - step.beta3)),
        sqrt_bias_correction3(
            static_cast<T>(std::sqrt(bias_correction(step.beta3, step.step)))),
        eps(static_cast<T>(step.eps)),
        minus_step_size(static_cast<T>(
            -(step.lr / bias_correction(step.beta1, step.step)))),
        minus_step_size_diff(static_cast<T>(
            -(step.lr * step.beta2 / bias_correction(step.beta2, step.step)))),
        decay(
            static_cast<T>(step.no_prox ? 1 - step.lr * step.weight_decay : 1)),
        divisor(
            static_cast<T>(step.no_prox ? 1 : 1 + step.lr * step.weight_decay)),
        is_first(step.step == 1) {}

  template <typename Vec>
  TESSERA_DEVICE void update(Vec& master, Vec grad, Vec (&state)[4]) const {
    auto& [exp_avg, exp_avg_sq, exp_avg_diff, previous_grad] = state;
    const Vec diff = is_first ? Vec(T{0}) : grad - previous_grad;
    const Vec ahead = fma(diff, beta2, grad);
    exp_avg = fma(grad, one_minus_beta1, exp_avg * beta1);
    exp_avg_diff = fma(diff, one_minus_beta2, exp_avg_diff * beta2);
    exp_avg_sq = fma(one_minus_beta3 * ahead, ahead, exp_avg_sq * beta3);
    const Vec direction =
        fma(exp_avg_diff, minus_step_size_diff, exp_avg * minus_step_size);
    const Vec denominator = sqrt(exp_avg_sq) / sqrt_bias_correction3 + eps;
    master = (master * decay + direction / denominator) / divisor;
    previous_grad = grad;
  }
};

} // namespace tessera::runtime
