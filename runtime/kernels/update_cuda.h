// SPDX-License-Identifier: Apache-2.0
#pragma once
// `launch_update()` and `launch_lamb_moments()` launch optimizer updates on
// CUDA, with raw device pointers and a stream instead of LibTorch's types.

#include "tessera/runtime/kernels/adamw_shard.h"
#include "tessera/runtime/kernels/adan_shard.h"
#include "tessera/runtime/kernels/lamb_shard.h"
#include "tessera/runtime/kernels/update_shard.h"

#include <cuda_runtime_api.h>

#include <cstddef>

namespace tessera::runtime {

/// Updates `count` runs on `stream`, about twenty per launch; does not
/// synchronize. Gives the same bits as the CPU kernels.
/// @param shards host memory, which may be reused on return.
/// @return the error of the launches.
template <typename Shard>
cudaError_t launch_update(
    const Shard* shards,
    size_t count,
    cudaStream_t stream);

/// The first half of LAMB, with another order of summation than on the CPU.
/// @param sums [count, kLambCudaBlocks, 2] on the device, zeros.
template <typename T>
cudaError_t launch_lamb_moments(
    const LambShard<T>* shards,
    size_t count,
    double* sums,
    cudaStream_t stream);

} // namespace tessera::runtime
