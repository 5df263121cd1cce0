// SPDX-License-Identifier: Apache-2.0
#pragma once
// `launch_update()` and `launch_lamb_moments()` launch optimizer updates on
// CUDA, with raw device pointers and a stream instead of LibTorch's types.

#include "tessera/runtime/kernels/cuda_registry.h"

#include <cuda_runtime_api.h>

namespace tessera::runtime {

/// Updates the runs on `stream`, about twenty per launch; does not synchronize.
/// Gives the same bits as the CPU kernels.
/// @param shards host memory, which may be reused on return.
/// @return the error of the launches.
cudaError_t launch_update(const UpdateShards& shards, cudaStream_t stream);

/// The first half of LAMB, with another order of summation than on the CPU.
/// @param sums [runs, kLambCudaBlocks, 2] on the device, zeros.
cudaError_t launch_lamb_moments(
    const LambShards& shards,
    double* sums,
    cudaStream_t stream);

} // namespace tessera::runtime
