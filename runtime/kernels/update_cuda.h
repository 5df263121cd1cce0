// SPDX-License-Identifier: Apache-2.0
#pragma once
// Optimizer updates on CUDA, below LibTorch: raw device pointers and a stream.

#include "tessera/runtime/kernels/adamw_shard.h"
#include "tessera/runtime/kernels/lamb_shard.h"
#include "tessera/runtime/kernels/update_shard.h"

#include <cuda_runtime_api.h>

#include <cstddef>

namespace tessera {

/// Updates `count` runs on `stream`, some thirty to forty per launch; does not
/// synchronise. Rounds like the CPU kernels: the same bits. Returns what the
/// launches returned.
/// @param shards host memory, which is free again on return.
template <typename Shard>
cudaError_t launch_update(
    const Shard* shards,
    size_t count,
    cudaStream_t stream);

/// The first half of LAMB, which sums in another order than the CPU.
/// @param sums [count, kLambCudaBlocks, 2] on the device, zeros.
template <typename T>
cudaError_t launch_lamb_moments(
    const LambShard<T>* shards,
    size_t count,
    double* sums,
    cudaStream_t stream);

} // namespace tessera
