// SPDX-License-Identifier: Apache-2.0
#pragma once
// `UpdateShard` is the argument of the update kernels of every optimizer and
// device. Plain C++: CUDA sources and the per-ISA sources include it, and
// neither may include LibTorch.

#include "tessera/runtime/kernels/low_precision.h"
#include "tessera/runtime/kernels/stochastic_rounding.h"

#include <cstdint>

namespace tessera::runtime {

/// The arrays of one run (in host or device memory) and the scalars of the
/// step.
template <typename T, typename Scalars>
struct UpdateShard {
  using Master = T;

  T* master;
  const void* grad; // T, or bits when grad_format is not kNone
  LowPrecision grad_format = LowPrecision::kNone;
  void* moment = nullptr; // T, or bits; null for SGD without momentum
  void* moment_sq = nullptr; // as moment; null for optimizers with one moment
  void* moment_diff = nullptr; // as moment; Adan only
  void* previous_grad = nullptr; // as moment; Adan only
  LowPrecision moment_format = LowPrecision::kNone; // never kFloat16
  uint16_t* low_precision = nullptr; // bits; unused when the format is kNone
  LowPrecision low_precision_format = LowPrecision::kNone;
  /// In memory of the kernel's device, or null for 1: the gradient is
  /// multiplied by it too. CPU kernels take it by way of fold_grad_factor().
  const double* grad_factor = nullptr;
  RoundingKey rounding;
  int64_t numel = 0;
  Scalars scalars;
};

/// Multiplies the scalars' grad_scale by *grad_factor, which the host can read.
template <typename T, typename Scalars>
void fold_grad_factor(UpdateShard<T, Scalars>& shard) {
  if (shard.grad_factor != nullptr) {
    shard.scalars.grad_scale = static_cast<T>(
        static_cast<double>(shard.scalars.grad_scale) * *shard.grad_factor);
    shard.grad_factor = nullptr;
  }
}

} // namespace tessera::runtime
