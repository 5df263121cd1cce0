// SPDX-License-Identifier: Apache-2.0
#pragma once
// SGD, Lion and LAMB on CPU: which kernel runs, and on how many threads.
// Internal; tests use it to force an instruction set.

#include "tessera/runtime/kernels/adamw_cpu.h"
#include "tessera/runtime/kernels/lamb_shard.h"
#include "tessera/runtime/kernels/update_shard.h"

namespace tessera {

template <typename T>
struct UpdateKernels; // update_kernel.h

/// Updates the shard; blocks. The float32 kernels give the same bits on every
/// instruction set. float64 has no kernel but the portable one.
/// @throws tessera::Error if `isa` is not available.
void update_cpu(Isa isa, const SgdShard<float>& shard);
void update_cpu(Isa isa, const SgdShard<double>& shard);
void update_cpu(Isa isa, const LionShard<float>& shard);
void update_cpu(Isa isa, const LionShard<double>& shard);

/// The halves of LAMB, see lamb.h. Instruction sets sum in different orders.
LambSums lamb_moments_cpu(Isa isa, const LambShard<float>& shard);
LambSums lamb_moments_cpu(Isa isa, const LambShard<double>& shard);
void lamb_weights_cpu(Isa isa, const LambShard<float>& shard);
void lamb_weights_cpu(Isa isa, const LambShard<double>& shard);

// The kernels. Those of an instruction set exist on x86-64 only.
UpdateKernels<float> update_kernels_portable_float();
UpdateKernels<double> update_kernels_portable_double();
UpdateKernels<float> update_kernels_avx2();
UpdateKernels<float> update_kernels_avx512();

} // namespace tessera
