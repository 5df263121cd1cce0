// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SgdStep` and `SgdRule` are the hyperparameters and the arithmetic of
// torch::optim::SGD, with its operations and roundings: one fma for every
// add_(x, alpha), as in [Note: the bits of AdamW]. See update_rules.h.
//
//   g = grad * grad_scale + weight_decay * master
//   moment = momentum * moment + (1 - dampening) * g   (step 1: moment = g)
//   d = nesterov ? g + momentum * moment : moment      (momentum 0: d = g)
//   master -= lr * d

#include "tessera/runtime/kernels/flat_shard.h"

#include <cstdint>

namespace tessera::runtime {

template <typename T>
struct SgdRule;

/// The hyperparameters of one step. `step` counts from 1.
struct SgdStep {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  int64_t step = 1;
  double grad_scale = 1.0; ///< the gradient is multiplied by this first
  StochasticRounding rounding;

  template <typename T>
  using Rule = SgdRule<T>;
  static constexpr const char* kName = "sgd_";

  int states() const {
    return momentum == 0 ? 0 : 1;
  }
  template <typename Checks>
  void check(const Checks& checks) const {
    checks.not_negative("lr", lr);
    checks.not_negative("momentum", momentum);
    checks.not_negative("weight_decay", weight_decay);
    checks.counts_from_one(step);
  }
};

template <typename T>
struct SgdRule {
  static constexpr int kStates = 1; // the momentum
  static constexpr bool kMayHaveNoState = true;

  T grad_scale;
  T momentum;
  T one_minus_dampening; // 1 in the first step: the moment is the gradient
  T weight_decay;
  T minus_lr;
  bool has_decay;
  bool nesterov;

  explicit SgdRule(const SgdStep& step)
      : grad_scale(static_cast<T>(step.grad_scale)),
        momentum(static_cast<T>(step.momentum)),
        one_minus_dampening(
            static_cast<T>(step.step == 1 ? 1 : 1 - step.dampening)),
        weight_decay(static_cast<T>(step.weight_decay)),
        minus_lr(static_cast<T>(-step.lr)),
        has_decay(weight_decay != 0),
        nesterov(step.nesterov) {}

  /// @param state nothing if there is no momentum.
  template <typename Vec, typename... State>
  TESSERA_DEVICE void update(Vec& master, Vec grad, State&... state) const {
    if (has_decay) {
      grad = fma(master, weight_decay, grad);
    }
    Vec direction = grad;
    if constexpr (sizeof...(state) > 0) {
      auto& [moment] = (state, ...);
      moment = fma(grad, one_minus_dampening, moment * momentum);
      direction = nesterov ? fma(moment, momentum, grad) : moment;
    }
    master = fma(direction, minus_lr, master);
  }
};

} // namespace tessera::runtime
