// SPDX-License-Identifier: Apache-2.0
#pragma once
// `UpdateShard` is the argument of the update kernels of every optimizer and
// device. Plain C++: CUDA sources and the per-ISA sources include it, and
// neither may include LibTorch.

#include "tessera/runtime/core/device_function.h"
#include "tessera/runtime/kernels/low_precision.h"
#include "tessera/runtime/kernels/stochastic_rounding.h"

#include <cmath>
#include <cstdint>

namespace tessera::runtime {

/// The most state arrays that a rule may have.
inline constexpr int kMaxStates = 4;

/// The arrays of one run (in host or device memory) and the rule of the step.
template <typename T, typename R>
struct UpdateShard {
  using Master = T;
  using Rule = R;

  T* master;
  const void* grad; // T, or bits when grad_format is not kNone
  LowPrecision grad_format = LowPrecision::kNone;
  void* states[kMaxStates] = {}; // T, or bits; those that the rule has
  LowPrecision state_format = LowPrecision::kNone; // never kFloat16
  uint16_t* low_precision = nullptr; // bits; unused when the format is kNone
  LowPrecision low_precision_format = LowPrecision::kNone;
  /// In memory of the kernel's device, or null for 1: the gradient is
  /// multiplied by it too. CPU kernels take it by way of fold_grad_factor().
  const double* grad_factor = nullptr;
  RoundingKey rounding;
  int64_t numel = 0;
  Rule rule;
};

/// Multiplies the rule's grad_scale by *grad_factor, which the host can read.
template <typename T, typename Rule>
void fold_grad_factor(UpdateShard<T, Rule>& shard) {
  if (shard.grad_factor != nullptr) {
    shard.rule.grad_scale = static_cast<T>(
        static_cast<double>(shard.rule.grad_scale) * *shard.grad_factor);
    shard.grad_factor = nullptr;
  }
}

/// The divisor of a moment that began at zero `step` steps ago.
inline double bias_correction(double beta, int64_t step) {
  return 1 - std::pow(beta, static_cast<double>(step));
}

} // namespace tessera::runtime
