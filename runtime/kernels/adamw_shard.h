// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AdamWStep` holds the hyperparameters and `AdamWScalars` the kernel constants
// of one step of AdamW or Adam. Plain C++, see flat_shard.h.

#include "tessera/runtime/kernels/flat_shard.h"

#include <cmath>
#include <cstdint>

namespace tessera::runtime {

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
};

/// Scalars for the moments and the denominator of Adam's family, computed in
/// double and then narrowed to the master's type where LibTorch narrows them.
template <typename T>
struct AdamScalars {
  T grad_scale;
  T beta1;
  T one_minus_beta1;
  T beta2;
  T one_minus_beta2;
  T sqrt_bias_correction2;
  T eps;

  explicit AdamScalars(const AdamWStep& step)
      : grad_scale(static_cast<T>(step.grad_scale)),
        beta1(static_cast<T>(step.beta1)),
        one_minus_beta1(static_cast<T>(1 - step.beta1)),
        beta2(static_cast<T>(step.beta2)),
        one_minus_beta2(static_cast<T>(1 - step.beta2)),
        sqrt_bias_correction2(
            static_cast<T>(std::sqrt(bias_correction(step.beta2, step.step)))),
        eps(static_cast<T>(step.eps)) {}

 protected:
  static double bias_correction(double beta, int64_t step) {
    return 1 - std::pow(beta, static_cast<double>(step));
  }
};

template <typename T>
struct AdamWScalars : AdamScalars<T> {
  T decay; // 1 - lr * weight_decay; 1 if decay is not decoupled
  T l2; // weight_decay if decay is not decoupled
  T minus_step_size; // -lr / (1 - beta1^step)

  explicit AdamWScalars(const AdamWStep& step)
      : AdamScalars<T>(step),
        decay(static_cast<T>(
            step.decoupled_decay ? 1 - step.lr * step.weight_decay : 1)),
        l2(static_cast<T>(step.decoupled_decay ? 0 : step.weight_decay)),
        minus_step_size(static_cast<T>(
            -(step.lr / this->bias_correction(step.beta1, step.step)))) {}
};

template <typename T>
using AdamWShard = UpdateShard<T, AdamWScalars<T>>;

} // namespace tessera::runtime
