// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the CUDA plugin leaves its kernels when it is loaded. The libraries
// are the same with and without CUDA.

#include "tessera/runtime/kernels/adamw_shard.h"
#include "tessera/runtime/kernels/update_shard.h"

#include <span>
#include <tuple>

namespace tessera {

/// Updates runs of device arrays, on the current stream of the current device;
/// does not synchronise.
template <typename Shard>
using UpdateCudaFunction = void (*)(std::span<const Shard>);

/// The updates that the plugin has.
using UpdateCudaFunctions = std::tuple<
    UpdateCudaFunction<AdamWShard<float>>,
    UpdateCudaFunction<AdamWShard<double>>,
    UpdateCudaFunction<SgdShard<float>>,
    UpdateCudaFunction<SgdShard<double>>,
    UpdateCudaFunction<LionShard<float>>,
    UpdateCudaFunction<LionShard<double>>>;

/// Called once, when the plugin is loaded.
void register_update_cuda(const UpdateCudaFunctions& functions);

/// @throws tessera::Error when no plugin has registered its functions.
const UpdateCudaFunctions& update_cuda_functions();

template <typename Shard>
void update_cuda(std::span<const Shard> shards) {
  std::get<UpdateCudaFunction<Shard>>(update_cuda_functions())(shards);
}

} // namespace tessera
