// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LambScalars` holds the kernel constants of one step of LAMB. Plain C++, see
// flat_shard.h.

#include "tessera/runtime/kernels/adamw_shard.h"

namespace tessera::runtime {

template <typename T>
struct LambScalars : AdamScalars<T> {
  T bias_correction1;
  T weight_decay;
  T minus_lr;
  double lr;
  /// In memory of the kernel's device, or null for 1: the learning rate is
  /// multiplied by it too. CPU kernels take it by way of fold_lr_factor().
  const double* lr_factor = nullptr;

  explicit LambScalars(const AdamWStep& step)
      : AdamScalars<T>(step),
        bias_correction1(
            static_cast<T>(this->bias_correction(step.beta1, step.step))),
        weight_decay(static_cast<T>(step.weight_decay)),
        minus_lr(static_cast<T>(-step.lr)),
        lr(step.lr) {}
};

/// Multiplies the learning rate by *lr_factor, which the host can read.
template <typename T>
void fold_lr_factor(LambScalars<T>& scalars) {
  if (scalars.lr_factor != nullptr) {
    scalars.minus_lr = static_cast<T>(-(scalars.lr * *scalars.lr_factor));
    scalars.lr_factor = nullptr;
  }
}

/// Sums of squares, and whether all gradients were finite (on CPU).
struct LambSums {
  double weights = 0;
  double direction = 0;
  bool grads_finite = true;
};

template <typename T>
using LambShard = UpdateShard<T, LambScalars<T>>;

} // namespace tessera::runtime
