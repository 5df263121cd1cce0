// SPDX-License-Identifier: Apache-2.0
#pragma once
// AdamW on CUDA, below LibTorch: raw device pointers and a stream.

#include "tessera/runtime/kernels/adamw_shard.h"

#include <cuda_runtime_api.h>

namespace tessera {

/// Updates the shard on `stream`; does not synchronise. Rounds like the CPU
/// kernels with SqrtRounding::kCorrect: the same bits.
/// Returns what the launch returned.
cudaError_t launch_adamw(const AdamWShard<float>& shard, cudaStream_t stream);
cudaError_t launch_adamw(const AdamWShard<double>& shard, cudaStream_t stream);

} // namespace tessera
