// SPDX-License-Identifier: Apache-2.0
#pragma once
// `update_of()` and the LAMB functions select the CPU kernels of optimizers.
// Internal; tests use them to force an instruction set.

#include "tessera/runtime/kernels/cpu_update.h"
#include "tessera/runtime/kernels/isa.h"
#include "tessera/runtime/kernels/update_kernels.h"

namespace tessera::runtime {

/// @throws tessera::Error if `isa` is not available.
template <typename T>
UpdateKernels<T> update_kernels(Isa isa);
template <>
UpdateKernels<float> update_kernels(Isa isa);
template <>
UpdateKernels<double> update_kernels(Isa isa);

/// Returns the update of a shard, whose arrays it does not own. The float32
/// kernels give the same bits with every instruction set; float64 has only a
/// portable kernel.
/// @throws tessera::Error if `isa` is not available.
template <typename Shard>
CpuUpdate update_of(Isa isa, const Shard& shard) {
  const UpdateKernel<Shard> kernel =
      update_kernels<typename Shard::Master>(isa);
  return {shard.numel, [=](int64_t begin, int64_t end) {
            return kernel.update(shard, begin, end);
          }};
}

/// The halves of LAMB, see lamb.h; both block. The order of summation depends
/// on the instruction set.
LambSums lamb_moments_cpu(Isa isa, const LambShard<float>& shard);
LambSums lamb_moments_cpu(Isa isa, const LambShard<double>& shard);
void lamb_weights_cpu(Isa isa, const LambShard<float>& shard);
void lamb_weights_cpu(Isa isa, const LambShard<double>& shard);

/// Converts 16-bit values to float32, exactly. @param format not kNone.
void widen_cpu(
    Isa isa,
    const uint16_t* bits,
    LowPrecision format,
    int64_t count,
    float* values);

} // namespace tessera::runtime
