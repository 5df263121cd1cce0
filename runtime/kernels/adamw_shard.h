// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the AdamW kernels of every device work on. Plain C++: CUDA sources and
// the per-ISA sources include it, and neither sees LibTorch.

#include "tessera/runtime/kernels/low_precision.h"

#include <cmath>
#include <cstdint>

namespace tessera {

/// How AdamW rounds its square root.
enum class SqrtRounding {
  /// As at::sqrt does in this process, so that the update equals
  /// torch::optim::AdamW bit for bit. LibTorch may take roots from a vector
  /// library that is off by one unit in the last place; then the update is
  /// slower too. CUDA's roots are correctly rounded either way.
  kLibTorch,
  /// Correctly rounded (IEEE 754): one fused pass, with the same bits on every
  /// machine, on CPU and on CUDA.
  kCorrect,
};

/// The hyperparameters of one step. `step` counts from 1.
struct AdamWStep {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  /// True: weights shrink by lr * weight_decay (AdamW). False: weight_decay *
  /// weight is added to the gradient (Adam with L2 regularisation).
  bool decoupled_decay = true;
  int64_t step = 1;
  /// The gradient is multiplied by this first (clipping, averaging); a factor
  /// of 1 changes no bit.
  double grad_scale = 1.0;
  SqrtRounding sqrt_rounding = SqrtRounding::kLibTorch;
};

/// The scalars of one step, computed in double and then narrowed to the
/// master's type, each where LibTorch narrows it.
template <typename T>
struct AdamWScalars {
  T grad_scale;
  T decay; // 1 - lr * weight_decay; 1 when it is not decoupled
  T l2; // weight_decay when it is not decoupled
  T beta1;
  T one_minus_beta1;
  T beta2;
  T one_minus_beta2;
  T sqrt_bias_correction2;
  T eps;
  T minus_step_size; // -lr / (1 - beta1^step)

  explicit AdamWScalars(const AdamWStep& step)
      : grad_scale(static_cast<T>(step.grad_scale)),
        decay(static_cast<T>(
            step.decoupled_decay ? 1 - step.lr * step.weight_decay : 1)),
        l2(static_cast<T>(step.decoupled_decay ? 0 : step.weight_decay)),
        beta1(static_cast<T>(step.beta1)),
        one_minus_beta1(static_cast<T>(1 - step.beta1)),
        beta2(static_cast<T>(step.beta2)),
        one_minus_beta2(static_cast<T>(1 - step.beta2)),
        sqrt_bias_correction2(
            static_cast<T>(std::sqrt(bias_correction(step.beta2, step.step)))),
        eps(static_cast<T>(step.eps)),
        minus_step_size(static_cast<T>(
            -(step.lr / bias_correction(step.beta1, step.step)))) {}

 private:
  static double bias_correction(double beta, int64_t step) {
    return 1 - std::pow(beta, static_cast<double>(step));
  }
};

/// The arrays of one shard (host or device memory) and the step's scalars.
template <typename T>
struct AdamWShard {
  T* master;
  const void* grad; // T, or bits when grad_format is not kNone
  LowPrecision grad_format = LowPrecision::kNone;
  T* exp_avg;
  T* exp_avg_sq;
  uint16_t* low_precision; // bits; unused when the format is kNone
  LowPrecision low_precision_format;
  int64_t numel;
  AdamWScalars<T> scalars;
};

} // namespace tessera
