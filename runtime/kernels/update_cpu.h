// SPDX-License-Identifier: Apache-2.0
#pragma once
// `update_of()` and the LAMB functions select the CPU kernels of SGD, Lion,
// LAMB and Adan. Internal; tests use them to force an instruction set.

#include "tessera/runtime/kernels/adan_shard.h"
#include "tessera/runtime/kernels/cpu_update.h"
#include "tessera/runtime/kernels/isa.h"
#include "tessera/runtime/kernels/lamb_shard.h"
#include "tessera/runtime/kernels/update_shard.h"

namespace tessera::runtime {

template <typename T>
struct UpdateKernels; // update_kernel.h

/// Returns the update of a shard, as adamw_update().
CpuUpdate update_of(Isa isa, const SgdShard<float>& shard);
CpuUpdate update_of(Isa isa, const SgdShard<double>& shard);
CpuUpdate update_of(Isa isa, const LionShard<float>& shard);
CpuUpdate update_of(Isa isa, const LionShard<double>& shard);
CpuUpdate update_of(Isa isa, const AdanShard<float>& shard);
CpuUpdate update_of(Isa isa, const AdanShard<double>& shard);

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

// The kernels. The AVX2 and AVX-512 ones exist on x86-64 only.
UpdateKernels<float> update_kernels_portable_float();
UpdateKernels<double> update_kernels_portable_double();
UpdateKernels<float> update_kernels_avx2();
UpdateKernels<float> update_kernels_avx512();

} // namespace tessera::runtime
