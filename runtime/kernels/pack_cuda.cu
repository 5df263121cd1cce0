// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/pack_cuda.h"

#include "tessera/runtime/kernels/launch.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

namespace tessera::runtime {

namespace {

constexpr int kThreads = 256;
// Elements that a thread moves at once.
constexpr int kWidth = 4;
// Blocks per run: enough to fill any device with the longest run alone.
constexpr int64_t kMostBlocks = 1024;

/// Runs as a kernel argument, at most 4 KiB, the limit on all devices.
struct PackTable {
  static constexpr size_t kCapacity = 3840 / sizeof(PackShard);
  PackShard shards[kCapacity];
};

template <typename T>
struct alignas(sizeof(T) * kWidth) Pack {
  T values[kWidth];
};

__device__ float widen(float x) {
  return x;
}
__device__ double widen(double x) {
  return x;
}
__device__ float widen(__half x) {
  return __half2float(x);
}
__device__ float widen(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

/// Rounds as LibTorch does: float64 to 16 bits by way of float32.
template <typename To, typename Wide>
__device__ To round_to(Wide x) {
  if constexpr (std::is_same_v<To, __half>) {
    return __float2half_rn(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, __nv_bfloat16>) {
    return __float2bfloat16_rn(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

template <typename T>
__device__ bool starts_a_pack(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(Pack<T>) == 0;
}

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
  return round_to<To>(fused(
      Wide{widen(source)}, static_cast<Wide>(factor), Wide{widen(target)}));
}

/// Grid-stride loop over packs, then over the remaining elements.
template <typename To, typename From>
__device__ void pack_run(const PackShard& shard, double factor, PackMode mode) {
  using Wide = decltype(widen(From{}));
  const auto scale = static_cast<Wide>(factor);
  const bool adds = mode == PackMode::kAdd;
  const auto* source = static_cast<const From*>(shard.source);
  auto* target = static_cast<To*>(shard.target);
  const bool is_zero = source == nullptr;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  int64_t packed = 0;
  // Null counts as aligned.
  if (starts_a_pack(source) && starts_a_pack(target)) {
    packed = shard.numel / kWidth;
    for (int64_t i = thread; i < packed; i += stride) {
      Pack<To> result;
      if (is_zero) {
        for (int k = 0; k < kWidth; ++k) {
          result.values[k] = round_to<To>(Wide{0});
        }
      } else {
        const auto values = reinterpret_cast<const Pack<From>*>(source)[i];
        if (adds) {
          result = reinterpret_cast<const Pack<To>*>(target)[i];
        }
        for (int k = 0; k < kWidth; ++k) {
          result.values[k] =
              adds ? sum_of(result.values[k], values.values[k], factor)
                   : round_to<To>(widen(values.values[k]) * scale);
        }
      }
      reinterpret_cast<Pack<To>*>(target)[i] = result;
    }
    packed *= kWidth;
  }
  for (int64_t i = packed + thread; i < shard.numel; i += stride) {
    target[i] =
        adds ? sum_of(target[i], source[i], factor)
             : round_to<To>(is_zero ? Wide{0} : widen(source[i]) * scale);
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
      return pack_run<To, float>(shard, factor, mode);
    case ElementType::kFloat64:
      return pack_run<To, double>(shard, factor, mode);
    case ElementType::kFloat16:
      return pack_run<To, __half>(shard, factor, mode);
    case ElementType::kBFloat16:
      return pack_run<To, __nv_bfloat16>(shard, factor, mode);
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
    const int64_t per_block = int64_t{kThreads} * kWidth;
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
