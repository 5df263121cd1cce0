// SPDX-License-Identifier: Apache-2.0
#pragma once
// AdamW on CPU: which kernel runs, and on how many threads. Internal; tests
// and benchmarks use it to force an instruction set.

#include "tessera/runtime/kernels/adamw_shard.h"

namespace tessera {

template <typename T>
struct AdamWKernel; // adamw_kernel.h

/// Instruction sets, the better the later.
enum class Isa { kPortable, kAvx2, kAvx512 };

/// Whether this processor, and this build, have it.
bool isa_available(Isa isa);

/// The best one that is available.
Isa best_isa();

/// Updates the shard; blocks. The float32 kernels give the same bits on every
/// instruction set.
/// @throws tessera::Error if `isa` is not available.
void adamw_cpu(Isa isa, const AdamWShard<float>& shard, SqrtRounding rounding);

/// float64 has no kernel but the portable one.
void adamw_cpu(const AdamWShard<double>& shard, SqrtRounding rounding);

// The kernels. Those of an instruction set exist on x86-64 only.
AdamWKernel<float> adamw_portable_float();
AdamWKernel<double> adamw_portable_double();
AdamWKernel<float> adamw_avx2();
AdamWKernel<float> adamw_avx512();

} // namespace tessera
