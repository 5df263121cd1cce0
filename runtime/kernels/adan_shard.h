// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AdanStep` holds the hyperparameters and `AdanScalars` the kernel constants
// of one step of Adan. Plain C++, see flat_shard.h.

#include "tessera/runtime/kernels/flat_shard.h"

#include <cmath>
#include <cstdint>

namespace tessera::runtime {

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
};

/// Scalars of one step, computed in double and narrowed to the master's type.
template <typename T>
struct AdanScalars {
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

  explicit AdanScalars(const AdanStep& step)
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

 private:
  static double bias_correction(double beta, int64_t step) {
    return 1 - std::pow(beta, static_cast<double>(step));
  }
};

template <typename T>
using AdanShard = UpdateShard<T, AdanScalars<T>>;

} // namespace tessera::runtime
