// SPDX-License-Identifier: Apache-2.0
#pragma once
// `register_update_cuda()` and `register_pack_cuda()` receive the kernels of
// the CUDA plugin, so that the libraries are the same with and without CUDA.

#include "tessera/runtime/kernels/adamw_shard.h"
#include "tessera/runtime/kernels/adan_shard.h"
#include "tessera/runtime/kernels/lamb_shard.h"
#include "tessera/runtime/kernels/pack_shard.h"
#include "tessera/runtime/kernels/update_shard.h"

#include <span>
#include <tuple>

namespace tessera::runtime {

/// Updates runs of device arrays, on the current stream of the current device;
/// does not synchronize.
template <typename Shard>
using UpdateCudaFunction = void (*)(std::span<const Shard>);

/// Partial sums per run of lamb_moments_() on CUDA.
inline constexpr int64_t kLambCudaBlocks = 64;

/// The first half of LAMB.
/// @param sums [runs, kLambCudaBlocks, 2] on the device, zeros.
template <typename T>
using LambMomentsCudaFunction =
    void (*)(std::span<const LambShard<T>>, double* sums);

/// The updates that the plugin provides.
using UpdateCudaFunctions = std::tuple<
    UpdateCudaFunction<AdamWShard<float>>,
    UpdateCudaFunction<AdamWShard<double>>,
    UpdateCudaFunction<SgdShard<float>>,
    UpdateCudaFunction<SgdShard<double>>,
    UpdateCudaFunction<LionShard<float>>,
    UpdateCudaFunction<LionShard<double>>,
    UpdateCudaFunction<AdanShard<float>>,
    UpdateCudaFunction<AdanShard<double>>,
    UpdateCudaFunction<LambShard<float>>, // the second half, lamb_weights_()
    UpdateCudaFunction<LambShard<double>>,
    LambMomentsCudaFunction<float>,
    LambMomentsCudaFunction<double>>;

/// Called once, when the plugin is loaded.
void register_update_cuda(const UpdateCudaFunctions& functions);

/// @throws tessera::Error when no plugin has registered its functions.
const UpdateCudaFunctions& update_cuda_functions();

template <typename Shard>
void update_cuda(std::span<const Shard> shards) {
  std::get<UpdateCudaFunction<Shard>>(update_cuda_functions())(shards);
}

template <typename T>
void lamb_moments_cuda(std::span<const LambShard<T>> shards, double* sums) {
  std::get<LambMomentsCudaFunction<T>>(update_cuda_functions())(shards, sums);
}

/// Packs runs of device arrays, on the current stream of the current device;
/// does not synchronize.
using PackCudaFunction = void (*)(
    std::span<const PackShard> shards,
    ElementType target_type,
    double factor,
    PackMode mode);

/// Called once, when the plugin is loaded.
void register_pack_cuda(PackCudaFunction function);

/// @throws tessera::Error when no plugin has registered its function.
void pack_cuda(
    std::span<const PackShard> shards,
    ElementType target_type,
    double factor,
    PackMode mode);

} // namespace tessera::runtime
