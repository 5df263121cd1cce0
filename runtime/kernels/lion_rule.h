// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LionStep` and `LionRule` are the hyperparameters and the arithmetic of Lion
// (arXiv:2302.06675, Alg. 2). See update_rules.h.
//
//   d = sign(beta1 * moment + (1 - beta1) * g)
//   moment = beta2 * moment + (1 - beta2) * g
//   master = (1 - lr * weight_decay) * master - lr * d

#include "tessera/runtime/kernels/flat_shard.h"

namespace tessera::runtime {

template <typename T>
struct LionRule;

/// The hyperparameters of one step.
struct LionStep {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
  double grad_scale = 1.0; ///< the gradient is multiplied by this first
  StochasticRounding rounding;

  template <typename T>
  using Rule = LionRule<T>;
  static constexpr const char* kName = "lion_";

  int states() const {
    return 1;
  }
  template <typename Checks>
  void check(const Checks& checks) const {
    checks.not_negative("lr", lr);
    checks.not_negative("weight_decay", weight_decay);
    checks.in_unit_interval("beta1", beta1);
    checks.in_unit_interval("beta2", beta2);
  }
};

template <typename T>
struct LionRule {
  static constexpr int kStates = 1; // the moment

  T grad_scale;
  T decay; // 1 - lr * weight_decay
  T beta1;
  T one_minus_beta1;
  T beta2;
  T one_minus_beta2;
  T minus_lr;

  explicit LionRule(const LionStep& step)
      : grad_scale(static_cast<T>(step.grad_scale)),
        decay(static_cast<T>(1 - step.lr * step.weight_decay)),
        beta1(static_cast<T>(step.beta1)),
        one_minus_beta1(static_cast<T>(1 - step.beta1)),
        beta2(static_cast<T>(step.beta2)),
        one_minus_beta2(static_cast<T>(1 - step.beta2)),
        minus_lr(static_cast<T>(-step.lr)) {}

  template <typename Vec>
  TESSERA_DEVICE void update(Vec& master, Vec grad, Vec (&state)[1]) const {
    auto& [moment] = state;
    const Vec direction = sign(fma(grad, one_minus_beta1, moment * beta1));
    moment = fma(grad, one_minus_beta2, moment * beta2);
    master = fma(direction, minus_lr, master * decay);
  }
};

} // namespace tessera::runtime
