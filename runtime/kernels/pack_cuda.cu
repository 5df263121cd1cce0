// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/pack_cuda.h"

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

template <typename To, typename Wide>
__device__ To round_to(Wide x) {
  if constexpr (std::is_same_v<To, __half>) {
    if constexpr (std::is_same_v<Wide, double>) {
      return __double2half(x);
    } else {
      return __float2half_rn(x);
    }
  } else if constexpr (std::is_same_v<To, __nv_bfloat16>) {
    if constexpr (std::is_same_v<Wide, double>) {
      return __double2bfloat16(x);
    } else {
      return __float2bfloat16_rn(x);
    }
  } else {
    return static_cast<To>(x);
  }
}

template <typename T>
__device__ bool starts_a_pack(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(Pack<T>) == 0;
}

/// Grid-stride loop over packs, then over the remaining elements.
template <typename To, typename From>
__device__ void pack_run(const PackShard& shard, double factor) {
  using Wide = decltype(widen(From{}));
  const auto scale = static_cast<Wide>(factor);
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
        for (int k = 0; k < kWidth; ++k) {
          result.values[k] = round_to<To>(widen(values.values[k]) * scale);
        }
      }
      reinterpret_cast<Pack<To>*>(target)[i] = result;
    }
    packed *= kWidth;
  }
  for (int64_t i = packed + thread; i < shard.numel; i += stride) {
    target[i] = round_to<To>(is_zero ? Wide{0} : widen(source[i]) * scale);
  }
}

/// blockIdx.y is the run; blockIdx.x is a part of it.
template <typename To>
__global__ void __launch_bounds__(kThreads)
    pack_kernel(const __grid_constant__ PackTable table, double factor) {
  const PackShard& shard = table.shards[blockIdx.y];
  switch (shard.source_type) {
    case ElementType::kFloat32:
      return pack_run<To, float>(shard, factor);
    case ElementType::kFloat64:
      return pack_run<To, double>(shard, factor);
    case ElementType::kFloat16:
      return pack_run<To, __half>(shard, factor);
    case ElementType::kBFloat16:
      return pack_run<To, __nv_bfloat16>(shard, factor);
  }
}

template <typename To>
void launch_table(
    const PackTable& table,
    dim3 grid,
    double factor,
    cudaStream_t stream) {
  pack_kernel<To><<<grid, kThreads, 0, stream>>>(table, factor);
}

} // namespace

cudaError_t launch_pack(
    const PackShard* shards,
    size_t count,
    ElementType target_type,
    double factor,
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
    switch (target_type) {
      case ElementType::kFloat32:
        launch_table<float>(table, grid, factor, stream);
        break;
      case ElementType::kFloat64:
        launch_table<double>(table, grid, factor, stream);
        break;
      case ElementType::kFloat16:
        launch_table<__half>(table, grid, factor, stream);
        break;
      case ElementType::kBFloat16:
        launch_table<__nv_bfloat16>(table, grid, factor, stream);
        break;
    }
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

} // namespace tessera::runtime
