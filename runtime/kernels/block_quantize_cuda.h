// SPDX-License-Identifier: Apache-2.0
#pragma once
// `launch_blocks()` launches the kernels of the block format on CUDA, with raw
// device pointers and a stream instead of LibTorch's types.

#include "tessera/runtime/kernels/block_format.h"

#include <cuda_runtime_api.h>

namespace tessera::runtime {

/// Does not synchronize. @return the error of the launch.
cudaError_t launch_blocks(const BlockArrays& arrays, cudaStream_t stream);

} // namespace tessera::runtime
