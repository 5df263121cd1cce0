// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/pack_cuda.h"

#include "tessera/runtime/kernels/element_pack.cuh"
#include "tessera/runtime/kernels/launch.cuh"

#include <algorithm>

namespace tessera::runtime {

namespace {

constexpr int kThreads = 256;
// Elements that a thread moves at once: 16 bytes of the narrower type.
template <typename To, typename From>
constexpr int kWidth = 16 / std::min(sizeof(To), sizeof(From));
// Most of them.
constexpr int64_t kMostWidth = 8;
// Blocks per run: enough to fill any device with the longest run alone.
constexpr int64_t kMostBlocks = 1024;

/// Runs as a kernel argument, at most 4 KiB, the limit on all devices.
struct PackTable {
  static constexpr size_t kCapacity = 3840 / sizeof(PackShard);
  PackShard shards[kCapacity];
};

__device__ float fused(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
__device__ double fused(double a, double b, double c) {
  return __fma_rn(a, b, c);
}

/// target + source * factor, in the wider type of both, at least float32.
template <typename To, typename From>
__device__ To sum_of(To target, From source, double factor) {
  using Wide = decltype(widen(target) + widen(source));
  return narrow<To>(fused(
      Wide{widen(source)}, static_cast<Wide>(factor), Wide{widen(target)}));
}

/// What becomes of `count` elements at `target`.
template <int kCount, typename To, typename From>
__device__ Pack<To, kCount> packed_values(
    const From* source,
    const To* target,
    double factor,
    PackMode mode) {
  using Wide = decltype(widen(From{}));
  Pack<To, kCount> result;
  if (source == nullptr) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      result.values[k] = narrow<To>(Wide{0});
    }
    return result;
  }
  const auto values = load_pack<kCount>(source);
  if (mode == PackMode::kAdd) {
    const auto before = load_pack<kCount>(target);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      result.values[k] = sum_of(before.values[k], values.values[k], factor);
    }
    return result;
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    result.values[k] =
        narrow<To>(widen(values.values[k]) * static_cast<Wide>(factor));
  }
  return result;
}

/// Grid-stride loop over packs, then over the remaining elements.
template <typename To, typename From>
__device__ void pack_segment(
    const PackShard& shard,
    double factor,
    PackMode mode) {
  const auto* source = static_cast<const From*>(shard.source);
  auto* target = static_cast<To*>(shard.target);
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  const auto pack = [&]<int kCount>(int64_t i) {
    store_pack(
        target + i,
        packed_values<kCount>(
            source == nullptr ? nullptr : source + i,
            target + i,
            factor,
            mode));
  };
  int64_t packed = 0;
  constexpr int kPack = kWidth<To, From>;
  if (is_aligned(source, kPackAlignment<From, kPack>) &&
      is_aligned(target, kPackAlignment<To, kPack>)) {
    packed = shard.numel / kPack * kPack;
    for (int64_t i = thread * kPack; i < packed; i += stride * kPack) {
      pack.template operator()<kPack>(i);
    }
  }
  for (int64_t i = packed + thread; i < shard.numel; i += stride) {
    pack.template operator()<1>(i);
  }
}

/// blockIdx.y is the run; blockIdx.x is a part of it.
template <typename To>
__global__ void __launch_bounds__(kThreads) pack_kernel(
    const PackTable __grid_constant__ table,
    double factor,
    PackMode mode) {
  const PackShard& shard = table.shards[blockIdx.y];
  switch (shard.source_type) {
    case ElementType::kFloat32:
      return pack_segment<To, float>(shard, factor, mode);
    case ElementType::kFloat64:
      return pack_segment<To, double>(shard, factor, mode);
    case ElementType::kFloat16:
      return pack_segment<To, __half>(shard, factor, mode);
    case ElementType::kBFloat16:
      return pack_segment<To, __nv_bfloat16>(shard, factor, mode);
  }
}

cudaError_t launch_table(
    const PackTable& table,
    dim3 grid,
    ElementType target_type,
    double factor,
    PackMode mode,
    cudaStream_t stream) {
  const auto to = [&]<typename To>(To) {
    return launch(
        &pack_kernel<To>, grid, kThreads, stream, table, factor, mode);
  };
  switch (target_type) {
    case ElementType::kFloat32:
      return to(float{});
    case ElementType::kFloat64:
      return to(double{});
    case ElementType::kFloat16:
      return to(__half{});
    case ElementType::kBFloat16:
      return to(__nv_bfloat16{});
  }
  return cudaErrorInvalidValue;
}

} // namespace

cudaError_t launch_pack(
    const PackShard* shards,
    size_t count,
    ElementType target_type,
    double factor,
    PackMode mode,
    cudaStream_t stream) {
  for (size_t first = 0; first < count; first += PackTable::kCapacity) {
    const size_t part = std::min(PackTable::kCapacity, count - first);
    PackTable table{};
    std::copy_n(shards + first, part, table.shards);
    int64_t longest = 0;
    for (size_t i = 0; i < part; ++i) {
      longest = std::max(longest, table.shards[i].numel);
    }
    const int64_t per_block = int64_t{kThreads} * kMostWidth;
    const dim3 grid(
        static_cast<unsigned>(std::clamp<int64_t>(
            (longest + per_block - 1) / per_block, 1, kMostBlocks)),
        static_cast<unsigned>(part));
    const cudaError_t error =
        launch_table(table, grid, target_type, factor, mode, stream);
    if (error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

} // namespace tessera::runtime
