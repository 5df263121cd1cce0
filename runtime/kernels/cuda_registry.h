// SPDX-License-Identifier: Apache-2.0
#pragma once
// `update_cuda()`, `lamb_moments_cuda()`, `pack_cuda()`, `blocks_cuda()`,
// `add_bias_cuda()` and `copy_rows_cuda()` call the kernels that the CUDA
// plugin has registered (device_kernels.h), so that the libraries are the same
// with and without CUDA; or LibTorch's operators, see [Note: the check of CUDA
// kernels]. Plain C++: CUDA sources include it.

#include "tessera/runtime/kernels/block_format.h"
#include "tessera/runtime/kernels/lamb_rule.h"
#include "tessera/runtime/kernels/pack_shard.h"
#include "tessera/runtime/kernels/row_arguments.h"
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

// All of them work on the current stream of the current device and do not
// synchronize, but for the check at a kernel's first use. They throw
// tessera::Error when no plugin has registered its kernels.

void update_cuda(const UpdateShards& shards);

/// @param sums [runs, kLambCudaBlocks, 2] on the device, zeros.
void lamb_moments_cuda(const LambShards& shards, double* sums);

/// Packs runs of device arrays.
void pack_cuda(
    std::span<const PackShard> shards,
    ElementType target_type,
    double factor,
    PackMode mode);

/// Encodes, decodes or sums device arrays.
void blocks_cuda(const BlockArrays& arrays);

/// Adds a bias to the rows of a device array.
void add_bias_cuda(const BiasRows& rows);

/// Adds up the columns of a device array that is not empty.
void column_sums_cuda(const ColumnSums& sums);

/// Copies the rows of a device array that is not empty.
void copy_rows_cuda(const RowCopy& rows);

} // namespace tessera::runtime
