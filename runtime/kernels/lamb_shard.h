// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the LAMB kernels of every device work on. Plain C++, see update_shard.h.

#include "tessera/runtime/kernels/adamw_shard.h"

#include <cmath>
#include <cstdint>

namespace tessera {

/// The scalars of one step, computed in double and then narrowed.
template <typename T>
struct LambScalars {
  T grad_scale;
  T beta1;
  T one_minus_beta1;
  T beta2;
  T one_minus_beta2;
  T bias_correction1;
  T sqrt_bias_correction2;
  T eps;
  T weight_decay;
  T minus_lr;

  explicit LambScalars(const AdamWStep& step)
      : grad_scale(static_cast<T>(step.grad_scale)),
        beta1(static_cast<T>(step.beta1)),
        one_minus_beta1(static_cast<T>(1 - step.beta1)),
        beta2(static_cast<T>(step.beta2)),
        one_minus_beta2(static_cast<T>(1 - step.beta2)),
        bias_correction1(static_cast<T>(
            1 - std::pow(step.beta1, static_cast<double>(step.step)))),
        sqrt_bias_correction2(static_cast<T>(std::sqrt(
            1 - std::pow(step.beta2, static_cast<double>(step.step))))),
        eps(static_cast<T>(step.eps)),
        weight_decay(static_cast<T>(step.weight_decay)),
        minus_lr(static_cast<T>(-step.lr)) {}
};

/// Sums of squares.
struct LambSums {
  double weights = 0;
  double direction = 0;
};

/// The arrays of one run (host or device memory) and the step's scalars.
template <typename T>
struct LambShard {
  T* master;
  const void* grad; // T, or bits when grad_format is not kNone
  LowPrecision grad_format;
  LowPrecision low_precision_format;
  T* exp_avg;
  T* exp_avg_sq;
  uint16_t* low_precision; // bits; unused when the format is kNone
  int64_t numel;
  LambScalars<T> scalars;
};

} // namespace tessera
