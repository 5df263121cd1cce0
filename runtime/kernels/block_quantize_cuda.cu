// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/block_quantize_cuda.h"

#include "tessera/runtime/kernels/element_pack.cuh"
#include "tessera/runtime/kernels/launch.cuh"

#include <algorithm>

namespace tessera::runtime {

namespace {

constexpr int kThreads = 128;
constexpr int64_t kMostBlocks = int64_t{1} << 20;

/// The largest over the threads of the block, for all of them.
__device__ uint32_t block_largest(uint32_t local) {
  __shared__ uint32_t shared[kThreads];
  shared[threadIdx.x] = local;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half &&
        shared[threadIdx.x + half] > shared[threadIdx.x]) {
      shared[threadIdx.x] = shared[threadIdx.x + half];
    }
  }
  __syncthreads();
  const uint32_t largest = shared[0];
  __syncthreads(); // the next one overwrites it
  return largest;
}

/// The sum over the threads of the block, for all of them, see kSignLanes.
template <typename T>
__device__ T block_sum(T local) {
  static_assert(kThreads == kSignLanes);
  __shared__ T shared[kThreads];
  shared[threadIdx.x] = local;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      shared[threadIdx.x] += shared[threadIdx.x + half];
    }
  }
  __syncthreads();
  const T sum = shared[0];
  __syncthreads(); // the next one overwrites it
  return sum;
}

/// One block of a part.
struct BlockView {
  int64_t first; ///< element of the part
  int64_t count;
  uint8_t* wire; ///< of the part
  float* scale;
};

__device__ BlockView
view_of(const BlockArrays& all, int64_t part, int64_t block) {
  BlockView view;
  view.first = block * all.format.block_numel;
  const int64_t rest = all.numel - view.first;
  view.count = rest < all.format.block_numel ? rest : all.format.block_numel;
  view.wire = all.wire + part * all.format.bytes(all.numel);
  view.scale =
      reinterpret_cast<float*>(view.wire + all.format.scales_begin(all.numel)) +
      block;
  return view;
}

template <typename T>
__device__ void encode_block(
    const BlockArrays& all,
    int64_t part,
    int64_t block) {
  const BlockView view = view_of(all, part, block);
  const T* values =
      static_cast<const T*>(all.values) + part * all.numel + view.first;
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < view.count; i += kThreads) {
    const uint32_t local = bits_of(widen(values[i])) & 0x7fffffff;
    largest = local > largest ? local : largest;
  }
  largest = block_largest(largest);
  uint8_t* codes = view.wire + all.format.code_bytes(view.first);
  if (all.format.type == CodeType::kSign) {
    float sum = 0;
    int32_t count = 0;
    for (int64_t i = threadIdx.x; i < view.count; i += kThreads) {
      const float value = widen(values[i]);
      sum = __fadd_rn(sum, float_of(bits_of(value) & 0x7fffffff));
      count += value != 0 ? 1 : 0;
    }
    sum = block_sum(sum);
    count = block_sum(count);
    if (threadIdx.x == 0) {
      *view.scale = sign_scale(largest, sum, count);
    }
    for (int64_t i = threadIdx.x; 8 * i < view.count; i += kThreads) {
      uint32_t code = 0;
      for (int k = 0; k < 8 && 8 * i + k < view.count; ++k) {
        code |= (widen(values[8 * i + k]) < 0 ? 1u : 0u) << k;
      }
      codes[i] = static_cast<uint8_t>(code);
    }
    return;
  }
  const BlockScale scale = block_scale(all.format.type, largest);
  if (threadIdx.x == 0) {
    *view.scale = scale.scale;
  }
  const auto scaled = [&](int64_t i) {
    return scale.inverse == 0 ? 0.0f
                              : __fmul_rn(widen(values[i]), scale.inverse);
  };
  if (all.format.type == CodeType::kInt4) {
    for (int64_t i = threadIdx.x; 2 * i < view.count; i += kThreads) {
      const auto low = static_cast<uint32_t>(nearest_int(scaled(2 * i)));
      const auto high =
          2 * i + 1 < view.count
              ? static_cast<uint32_t>(nearest_int(scaled(2 * i + 1)))
              : 0u;
      codes[i] = static_cast<uint8_t>((low & 15) | (high << 4));
    }
    return;
  }
  for (int64_t i = threadIdx.x; i < view.count; i += kThreads) {
    codes[i] = all.format.type == CodeType::kFp8
                   ? fp8_code(scaled(i))
                   : static_cast<uint8_t>(nearest_int(scaled(i)));
  }
}

__device__ float decoded(
    const BlockArrays& all,
    const BlockView& view,
    int64_t i) {
  const int64_t element = view.first + i;
  switch (all.format.type) {
    case CodeType::kInt8:
      return __fmul_rn(
          static_cast<float>(static_cast<int8_t>(view.wire[element])),
          *view.scale);
    case CodeType::kInt4: {
      const uint32_t both = view.wire[element / 2];
      return __fmul_rn(
          static_cast<float>(int4_value(element % 2 == 0 ? both : both >> 4)),
          *view.scale);
    }
    case CodeType::kFp8:
      return __fmul_rn(fp8_value(view.wire[element]), *view.scale);
    case CodeType::kSign: {
      const uint32_t eight = view.wire[element / 8];
      return float_of(
          bits_of(*view.scale) ^ (eight >> (element % 8) & 1) << 31);
    }
  }
  return 0;
}

template <typename T>
__device__ void decode_block(
    const BlockArrays& all,
    int64_t part,
    int64_t block) {
  const BlockView view = view_of(all, part, block);
  T* values = static_cast<T*>(all.values) + part * all.numel + view.first;
  for (int64_t i = threadIdx.x; i < view.count; i += kThreads) {
    values[i] = narrow<T>(decoded(all, view, i));
  }
}

template <typename T>
__device__ void sum_block(const BlockArrays& all, int64_t block) {
  const BlockView view = view_of(all, 0, block);
  T* values = static_cast<T*>(all.values) + view.first;
  for (int64_t i = threadIdx.x; i < view.count; i += kThreads) {
    float sum = decoded(all, view, i);
    for (int64_t part = 1; part < all.parts; ++part) {
      sum = __fadd_rn(sum, decoded(all, view_of(all, part, block), i));
    }
    values[i] = narrow<T>(all.factor == 1 ? sum : __fmul_rn(sum, all.factor));
  }
}

/// A thread block per block of the format, as often as there are more of these.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    blocks_kernel(const BlockArrays __grid_constant__ all) {
  const int64_t blocks = all.format.blocks(all.numel);
  const bool sums = all.work == BlockWork::kSum;
  const int64_t total = sums ? blocks : all.parts * blocks;
  for (int64_t k = blockIdx.x; k < total; k += gridDim.x) {
    if (sums) {
      sum_block<T>(all, k);
    } else if (all.work == BlockWork::kEncode) {
      encode_block<T>(all, k / blocks, k % blocks);
    } else {
      decode_block<T>(all, k / blocks, k % blocks);
    }
  }
}

} // namespace

cudaError_t launch_blocks(const BlockArrays& arrays, cudaStream_t stream) {
  const int64_t blocks = arrays.format.blocks(arrays.numel) *
                         (arrays.work == BlockWork::kSum ? 1 : arrays.parts);
  const dim3 grid(
      static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, kMostBlocks)));
  const auto with = [&]<typename T>(T) {
    return launch(&blocks_kernel<T>, grid, kThreads, stream, arrays);
  };
  switch (arrays.type) {
    case ElementType::kFloat32:
      return with(float{});
    case ElementType::kFloat16:
      return with(__half{});
    case ElementType::kBFloat16:
      return with(__nv_bfloat16{});
    case ElementType::kFloat64:
      break;
  }
  return cudaErrorInvalidValue;
}

} // namespace tessera::runtime
