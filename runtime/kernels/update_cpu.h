// SPDX-License-Identifier: Apache-2.0
#pragma once
// SGD, Lion and LAMB on CPU: which kernel runs. Internal; tests use it to force
// an instruction set.

#include "tessera/runtime/kernels/cpu_update.h"
#include "tessera/runtime/kernels/isa.h"
#include "tessera/runtime/kernels/lamb_shard.h"
#include "tessera/runtime/kernels/update_shard.h"

namespace tessera {

template <typename T>
struct UpdateKernels; // update_kernel.h

/// The update of a shard, as adamw_update().
CpuUpdate update_of(Isa isa, const SgdShard<float>& shard);
CpuUpdate update_of(Isa isa, const SgdShard<double>& shard);
CpuUpdate update_of(Isa isa, const LionShard<float>& shard);
CpuUpdate update_of(Isa isa, const LionShard<double>& shard);

/// The halves of LAMB, see lamb.h; both block. Instruction sets sum in
/// different orders.
LambSums lamb_moments_cpu(Isa isa, const LambShard<float>& shard);
LambSums lamb_moments_cpu(Isa isa, const LambShard<double>& shard);
void lamb_weights_cpu(Isa isa, const LambShard<float>& shard);
void lamb_weights_cpu(Isa isa, const LambShard<double>& shard);

/// 16-bit values as float32, exactly. @param format not kNone.
void widen_cpu(
    Isa isa,
    const uint16_t* bits,
    LowPrecision format,
    int64_t count,
    float* values);

// The kernels. Those of an instruction set exist on x86-64 only.
UpdateKernels<float> update_kernels_portable_float();
UpdateKernels<double> update_kernels_portable_double();
UpdateKernels<float> update_kernels_avx2();
UpdateKernels<float> update_kernels_avx512();

} // namespace tessera
