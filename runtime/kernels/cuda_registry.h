// SPDX-License-Identifier: Apache-2.0
#pragma once
// `register_update_cuda()`, `register_pack_cuda()` and `register_blocks_cuda()`
// receive the kernels of the CUDA plugin, so that the libraries are the same
// with and without CUDA.

#include "tessera/runtime/kernels/block_format.h"
#include "tessera/runtime/kernels/lamb_rule.h"
#include "tessera/runtime/kernels/pack_shard.h"
#include "tessera/runtime/kernels/update_rules.h"

#include <span>
#include <variant>

namespace tessera::runtime {

template <typename Steps>
struct ShardsOf;
template <typename... Steps>
struct ShardsOf<StepList<Steps...>> {
  using Shards = std::variant<
      std::span<const ShardOf<float, Steps>>...,
      std::span<const ShardOf<double, Steps>>...,
      std::span<const LambShard<float>>,
      std::span<const LambShard<double>>>;
};

/// Runs of device arrays for one update; of LAMB, for its second half.
using UpdateShards = ShardsOf<FusedSteps>::Shards;

/// Runs of device arrays for the first half of LAMB.
using LambShards = std::variant<
    std::span<const LambShard<float>>,
    std::span<const LambShard<double>>>;

/// Partial sums per run of lamb_moments_() on CUDA.
inline constexpr int64_t kLambCudaBlocks = 64;

/// The updates that the plugin provides, on the current stream of the current
/// device; they do not synchronize.
struct UpdateCudaFunctions {
  void (*update)(const UpdateShards& shards) = nullptr;
  /// @param sums [runs, kLambCudaBlocks, 2] on the device, zeros.
  void (*lamb_moments)(const LambShards& shards, double* sums) = nullptr;
};

/// Called once, when the plugin is loaded.
void register_update_cuda(const UpdateCudaFunctions& functions);

/// @throws tessera::Error when no plugin has registered its functions.
void update_cuda(const UpdateShards& shards);
void lamb_moments_cuda(const LambShards& shards, double* sums);

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

/// Encodes, decodes or sums device arrays, on the current stream of the current
/// device; does not synchronize.
using BlocksCudaFunction = void (*)(const BlockArrays& arrays);

/// Called once, when the plugin is loaded.
void register_blocks_cuda(BlocksCudaFunction function);

/// @throws tessera::Error when no plugin has registered its function.
void blocks_cuda(const BlockArrays& arrays);

} // namespace tessera::runtime
