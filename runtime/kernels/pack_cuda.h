// SPDX-License-Identifier: Apache-2.0
#pragma once
// `launch_pack()` launches the packing kernel on CUDA, with raw device pointers
// and a stream instead of LibTorch's types.

#include "tessera/runtime/kernels/pack_shard.h"

#include <cuda_runtime_api.h>

#include <cstddef>

namespace tessera::runtime {

/// Packs `count` runs on `stream`, 120 per launch; does not synchronize.
/// @param shards host memory, which may be reused on return.
/// @return the error of the launches.
cudaError_t launch_pack(
    const PackShard* shards,
    size_t count,
    ElementType target_type,
    double factor,
    PackMode mode,
    cudaStream_t stream);

} // namespace tessera::runtime
