// SPDX-License-Identifier: Apache-2.0
#pragma once
// Packing on CUDA, below LibTorch: raw device pointers and a stream.

#include "tessera/runtime/kernels/pack_shard.h"

#include <cuda_runtime_api.h>

#include <cstddef>

namespace tessera {

/// Packs `count` runs on `stream`, 120 per launch; does not synchronise.
/// Returns what the launches returned.
/// @param shards host memory, which is free again on return.
cudaError_t launch_pack(
    const PackShard* shards,
    size_t count,
    ElementType target_type,
    double factor,
    cudaStream_t stream);

} // namespace tessera
