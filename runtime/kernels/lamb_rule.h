// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LambRule` is the arithmetic of the two halves of LAMB (lamb.h), for the
// vectors of update_rules.h.

#include "tessera/runtime/kernels/adamw_rule.h"

namespace tessera::runtime {

template <typename T>
struct LambRule : AdamMoments<T> {
  T bias_correction1;
  T weight_decay;
  T minus_lr;
  double lr;
  /// In memory of the kernel's device, or null for 1: the learning rate is
  /// multiplied by it too. CPU kernels take it by way of fold_lr_factor().
  const double* lr_factor = nullptr;

  explicit LambRule(const AdamWStep& step)
      : AdamMoments<T>(step),
        bias_correction1(
            static_cast<T>(bias_correction(step.beta1, step.step))),
        weight_decay(static_cast<T>(step.weight_decay)),
        minus_lr(static_cast<T>(-step.lr)),
        lr(step.lr) {}

  template <typename Vec>
  TESSERA_DEVICE Vec direction(Vec master, Vec exp_avg, Vec exp_avg_sq) const {
    return fma(
        master,
        weight_decay,
        exp_avg / bias_correction1 / this->denominator(exp_avg_sq));
  }
};

/// Multiplies the learning rate by *lr_factor, which the host can read.
template <typename T>
void fold_lr_factor(LambRule<T>& rule) {
  if (rule.lr_factor != nullptr) {
    rule.minus_lr = static_cast<T>(-(rule.lr * *rule.lr_factor));
    rule.lr_factor = nullptr;
  }
}

/// Sums of squares, and whether all gradients were finite (on CPU).
struct LambSums {
  double weights = 0;
  double direction = 0;
  bool grads_finite = true;
};

template <typename T>
using LambShard = UpdateShard<T, LambRule<T>>;

} // namespace tessera::runtime
