// SPDX-License-Identifier: Apache-2.0
#pragma once
// `adamw_update()` selects the CPU kernel of AdamW. Internal; tests and
// benchmarks use it to force an instruction set.

#include "tessera/runtime/kernels/adamw_shard.h"
#include "tessera/runtime/kernels/cpu_update.h"
#include "tessera/runtime/kernels/isa.h"

namespace tessera::runtime {

/// The update of elements [begin, end) of a shard. Returns whether their
/// gradients were all finite.
template <typename T>
using AdamWKernel = bool (*)(const AdamWShard<T>&, int64_t begin, int64_t end);

/// Returns the update of a shard, whose arrays it does not own. The float32
/// kernels give the same bits with every instruction set; float64 has only a
/// portable kernel.
/// @throws tessera::Error if `isa` is not available.
CpuUpdate adamw_update(Isa isa, const AdamWShard<float>& shard);
CpuUpdate adamw_update(Isa isa, const AdamWShard<double>& shard);

// The kernels. The AVX2 and AVX-512 ones exist on x86-64 only.
AdamWKernel<float> adamw_portable_float();
AdamWKernel<double> adamw_portable_double();
AdamWKernel<float> adamw_avx2();
AdamWKernel<float> adamw_avx512();

} // namespace tessera::runtime
