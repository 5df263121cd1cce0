// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/update_cuda.h"

#include "tessera/runtime/kernels/launch.cuh"
#include "tessera/runtime/kernels/update_loops.cuh"

#include <algorithm>
#include <span>
#include <variant>

namespace tessera::runtime {

namespace {

constexpr int kThreads = 256;

/// Runs as a kernel argument, at most 4 KiB, the limit on all devices.
template <typename Shard>
struct Table {
  static constexpr size_t kCapacity = 3840 / sizeof(Shard);
  Shard shards[kCapacity];
};

template <typename T>
constexpr int kPackWidth = 16 / sizeof(T);

/// Whether all arrays of a run are aligned for packs.
template <typename T, typename Rule>
__device__ bool is_packed(const UpdateShard<T, Rule>& s) {
  constexpr size_t kNarrow = sizeof(uint16_t) * kPackWidth<T>;
  const auto bytes = [](LowPrecision format) {
    return format == LowPrecision::kNone ? size_t{16} : kNarrow;
  };
  bool packed = is_aligned(s.master, 16) &&
                is_aligned(s.grad, bytes(s.grad_format)) &&
                is_aligned(s.low_precision, kNarrow);
#pragma unroll
  for (int k = 0; k < kMaxStates; ++k) {
    packed = packed && is_aligned(s.states[k], bytes(s.state_format));
  }
  return packed;
}

/// Grid-stride loop over packs, then over the remaining elements; calls
/// body.operator()<width>(i).
template <typename Shard, typename Body>
__device__ void for_each_pack(const Shard& shard, Body body) {
  using T = typename Shard::Master;
  constexpr int kWidth = kPackWidth<T>;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  int64_t packed = 0;
  if (is_packed(shard)) {
    packed = shard.numel / kWidth * kWidth;
    for (int64_t i = thread * kWidth; i < packed; i += stride * kWidth) {
      body.template operator()<kWidth>(i);
    }
  }
  for (int64_t i = packed + thread; i < shard.numel; i += stride) {
    body.template operator()<1>(i);
  }
}

/// blockIdx.y is the run; blockIdx.x is a part of it.
template <typename Shard>
__global__ void __launch_bounds__(kThreads)
    update_kernel(const Table<Shard> __grid_constant__ table) {
  const Shard& shard = table.shards[blockIdx.y];
  const auto grad_scale = grad_scale_of(shard);
  for_each_pack(shard, [&]<int kWidth>(int64_t i) {
    update_pack<kWidth>(shard, grad_scale, i);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) lamb_moments_kernel(
    const Table<LambShard<T>> __grid_constant__ table,
    double* sums) {
  const LambShard<T>& shard = table.shards[blockIdx.y];
  const T grad_scale = grad_scale_of(shard);
  LambSums local;
  for_each_pack(shard, [&]<int kWidth>(int64_t i) {
    lamb_moments_pack<kWidth>(shard, grad_scale, i, local);
  });
  // Tree reduction over the block, always in the same order.
  __shared__ double shared[2][kThreads];
  shared[0][threadIdx.x] = local.weights;
  shared[1][threadIdx.x] = local.direction;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      shared[0][threadIdx.x] += shared[0][threadIdx.x + half];
      shared[1][threadIdx.x] += shared[1][threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) {
    double* self_sums =
        sums + 2 * (int64_t{blockIdx.y} * gridDim.x + blockIdx.x);
    self_sums[0] = shared[0][0];
    self_sums[1] = shared[1][0];
  }
}

/// Calls launch_table(table, first, count) once per table full of runs.
template <typename Shard, typename Launch>
cudaError_t for_each_table(std::span<const Shard> shards, Launch launch_table) {
  constexpr size_t kCapacity = Table<Shard>::kCapacity;
  for (size_t first = 0; first < shards.size(); first += kCapacity) {
    const size_t part = std::min(kCapacity, shards.size() - first);
    // Shards have no default constructor; unused entries stay uninitialized.
    alignas(Table<Shard>) unsigned char memory[sizeof(Table<Shard>)];
    auto& table = reinterpret_cast<Table<Shard>&>(memory);
    std::copy_n(shards.data() + first, part, table.shards);
    const cudaError_t error =
        launch_table(table, first, static_cast<unsigned>(part));
    if (error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

/// The number of blocks that are resident with 2048 threads per multiprocessor.
cudaError_t resident_blocks(int64_t& blocks) {
  int device = 0;
  int processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(
        &processors, cudaDevAttrMultiProcessorCount, device);
  }
  blocks = int64_t{processors} * (2048 / kThreads);
  return error;
}

template <typename Shard>
cudaError_t launch_on(std::span<const Shard> shards, cudaStream_t stream) {
  using T = typename Shard::Master;
  int64_t resident = 0;
  const cudaError_t error = resident_blocks(resident);
  if (error != cudaSuccess) {
    return error;
  }
  return for_each_table(
      shards, [&](const Table<Shard>& table, size_t, unsigned part) {
        int64_t longest = 0;
        for (unsigned i = 0; i < part; ++i) {
          longest = std::max(longest, table.shards[i].numel);
        }
        const int64_t per_block = int64_t{kThreads} * kPackWidth<T>;
        const int64_t needed = (longest + per_block - 1) / per_block;
        const auto blocks = static_cast<unsigned>(
            std::clamp<int64_t>(needed, 1, std::max<int64_t>(resident, 1)));
        return launch(
            &update_kernel<Shard>, dim3(blocks, part), kThreads, stream, table);
      });
}

template <typename T>
cudaError_t launch_lamb_moments_on(
    std::span<const LambShard<T>> shards,
    double* sums,
    cudaStream_t stream) {
  return for_each_table(
      shards,
      [&](const Table<LambShard<T>>& table, size_t first, unsigned part) {
        const dim3 grid(static_cast<unsigned>(kLambCudaBlocks), part);
        return launch(
            &lamb_moments_kernel<T>,
            grid,
            kThreads,
            stream,
            table,
            sums + 2 * kLambCudaBlocks * static_cast<int64_t>(first));
      });
}

} // namespace

cudaError_t launch_update(const UpdateShards& shards, cudaStream_t stream) {
  return std::visit([&](auto s) { return launch_on(s, stream); }, shards);
}

cudaError_t launch_lamb_moments(
    const LambShards& shards,
    double* sums,
    cudaStream_t stream) {
  return std::visit(
      [&](auto s) { return launch_lamb_moments_on(s, sums, stream); }, shards);
}

} // namespace tessera::runtime
