// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SgdStep` and `LionStep` hold the hyperparameters of one step of the
// optimizers with at most one moment. Plain C++, see flat_shard.h.

#include "tessera/runtime/kernels/flat_shard.h"

#include <cstdint>

namespace tessera::runtime {

/// One step of stochastic gradient descent. `step` counts from 1.
struct SgdStep {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  int64_t step = 1;
  double grad_scale = 1.0; ///< the gradient is multiplied by this first
  StochasticRounding rounding;
};

/// One step of Lion.
struct LionStep {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
  double grad_scale = 1.0; ///< the gradient is multiplied by this first
  StochasticRounding rounding;
};

/// Scalars of one step, computed in double and narrowed to the master's type
/// where LibTorch narrows them.
template <typename T>
struct SgdScalars {
  T grad_scale;
  T momentum;
  T one_minus_dampening; // 1 in the first step: the moment is the gradient
  T weight_decay;
  T minus_lr;
  bool nesterov;

  explicit SgdScalars(const SgdStep& step)
      : grad_scale(static_cast<T>(step.grad_scale)),
        momentum(static_cast<T>(step.momentum)),
        one_minus_dampening(
            static_cast<T>(step.step == 1 ? 1 : 1 - step.dampening)),
        weight_decay(static_cast<T>(step.weight_decay)),
        minus_lr(static_cast<T>(-step.lr)),
        nesterov(step.nesterov) {}
};

template <typename T>
struct LionScalars {
  T grad_scale;
  T decay; // 1 - lr * weight_decay
  T beta1;
  T one_minus_beta1;
  T beta2;
  T one_minus_beta2;
  T minus_lr;

  explicit LionScalars(const LionStep& step)
      : grad_scale(static_cast<T>(step.grad_scale)),
        decay(static_cast<T>(1 - step.lr * step.weight_decay)),
        beta1(static_cast<T>(step.beta1)),
        one_minus_beta1(static_cast<T>(1 - step.beta1)),
        beta2(static_cast<T>(step.beta2)),
        one_minus_beta2(static_cast<T>(1 - step.beta2)),
        minus_lr(static_cast<T>(-step.lr)) {}
};

template <typename T>
using SgdShard = UpdateShard<T, SgdScalars<T>>;
template <typename T>
using LionShard = UpdateShard<T, LionScalars<T>>;

} // namespace tessera::runtime
