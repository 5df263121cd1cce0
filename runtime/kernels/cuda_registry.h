// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the CUDA plugin leaves its kernels when it is loaded. The libraries
// are the same with and without CUDA.

#include "tessera/runtime/kernels/adamw_shard.h"

namespace tessera {

/// Runs AdamW on device arrays, on the current stream of the current device;
/// does not synchronise.
struct AdamWCuda {
  void (*update_float)(const AdamWShard<float>&) = nullptr;
  void (*update_double)(const AdamWShard<double>&) = nullptr;
};

/// Called once, when the plugin is loaded.
void register_adamw_cuda(AdamWCuda functions);

/// @throws tessera::Error when no plugin has registered its functions.
const AdamWCuda& adamw_cuda();

} // namespace tessera
