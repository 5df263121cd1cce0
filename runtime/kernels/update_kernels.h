// SPDX-License-Identifier: Apache-2.0
#pragma once
// `UpdateKernels` are the optimizer kernels of one CPU instruction set. Plain
// C++, see flat_shard.h.

#include "tessera/runtime/kernels/lamb_rule.h"
#include "tessera/runtime/kernels/update_rules.h"

#include <cstdint>

namespace tessera::runtime {

/// The update of elements [begin, end) of a shard; returns whether their
/// gradients were all finite.
template <typename Shard>
struct UpdateKernel {
  bool (*update)(const Shard&, int64_t begin, int64_t end);
};

template <typename T, typename Steps = FusedSteps>
struct UpdateKernels;

template <typename T, typename... Steps>
struct UpdateKernels<T, StepList<Steps...>>
    : UpdateKernel<ShardOf<T, Steps>>... {
  LambSums (*lamb_moments)(const LambShard<T>&, int64_t begin, int64_t end);
  void (*lamb_weights)(const LambShard<T>&, int64_t begin, int64_t end);
  /// Converts 16-bit values to T, exactly. @param format not kNone.
  void (*widen)(
      const uint16_t* bits,
      LowPrecision format,
      int64_t count,
      T* values);
};

// The AVX2 and AVX-512 ones exist on x86-64 only.
UpdateKernels<float> update_kernels_portable_float();
UpdateKernels<double> update_kernels_portable_double();
UpdateKernels<float> update_kernels_avx2();
UpdateKernels<float> update_kernels_avx512();

} // namespace tessera::runtime
