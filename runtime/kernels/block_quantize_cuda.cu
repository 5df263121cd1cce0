// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/block_quantize_cuda.h"

#include "tessera/runtime/kernels/element_pack.cuh"
#include "tessera/runtime/kernels/launch.cuh"

#include <algorithm>

namespace tessera::runtime {

namespace {

constexpr int kThreads = 128;
constexpr int64_t kMostBlocks = int64_t{1} << 20;
constexpr int kExpandThreads = 256;
constexpr int kExpanded = 8; ///< values that a thread decodes at a time

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

/// The bits of the largest magnitude of values, for all threads of the block.
template <typename T>
__device__ uint32_t largest_magnitude(const T* values, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    const uint32_t local = bits_of(widen(values[i])) & 0x7fffffff;
    largest = local > largest ? local : largest;
  }
  return block_largest(largest);
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
  const uint32_t largest = largest_magnitude(values, view.count);
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
    case CodeType::kNf4:
      break; // expand_nf4_kernel()
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

/// Encodes a block of nf4. Called by all threads of the block.
/// @return its scale.
template <typename T>
__device__ float encode_nf4(
    const BlockArrays& all,
    int64_t part,
    int64_t block) {
  const BlockView view = view_of(all, part, block);
  const T* values =
      static_cast<const T*>(all.values) + part * all.numel + view.first;
  const BlockScale scale =
      block_scale(CodeType::kNf4, largest_magnitude(values, view.count));
  const auto code_of = [&](int64_t i) {
    return i < view.count && scale.inverse != 0
               ? nf4_code(__fmul_rn(widen(values[i]), scale.inverse))
               : nf4_code(0);
  };
  uint8_t* codes = view.wire + view.first / 2;
  for (int64_t i = threadIdx.x; 2 * i < view.count; i += kThreads) {
    codes[i] = static_cast<uint8_t>(code_of(2 * i) | code_of(2 * i + 1) << 4);
  }
  return scale.scale;
}

/// The scales of a group, compact. Called by all threads of the block.
/// @param scales [blocks], in shared memory.
__device__ void store_compact(
    const BlockArrays& all,
    const BlockView& first,
    const float* scales,
    int64_t blocks) {
  ScaleLimits limits{float_of(kInfinityBits), 0};
  bool finite = true;
  for (int64_t k = 0; k < blocks; ++k) {
    widen_limits(limits, scales[k]);
    finite = finite && bits_of(scales[k]) < kInfinityBits;
  }
  limits = stored_limits(limits, finite);
  const float inverse = compact_inverse(limits);
  uint8_t* bytes = first.wire + all.format.scales_begin(all.numel) +
                   first.first / all.format.block_numel;
  for (int64_t k = threadIdx.x; k < blocks; k += kThreads) {
    const float above = scales[k] - limits.smallest;
    bytes[k] = static_cast<uint8_t>(
        above > 0 ? nearest_int(__fmul_rn(above, inverse)) : 0);
  }
  if (threadIdx.x == 0) {
    reinterpret_cast<ScaleLimits*>(
        first.wire + all.format.limits_begin(
                         all.numel))[first.first / all.format.unit_numel()] =
        limits;
  }
}

/// A thread block per group of kScaleGroup blocks.
template <typename T>
__global__ void __launch_bounds__(kThreads, 8)
    encode_nf4_kernel(const BlockArrays __grid_constant__ all) {
  __shared__ float scales[kScaleGroup];
  const int64_t blocks = all.format.blocks(all.numel);
  const int64_t groups = (blocks + kScaleGroup - 1) / kScaleGroup;
  for (int64_t k = blockIdx.x; k < all.parts * groups; k += gridDim.x) {
    const int64_t part = k / groups;
    const int64_t first = (k - part * groups) * kScaleGroup;
    const int64_t rest = blocks - first;
    const int64_t count = rest < kScaleGroup ? rest : kScaleGroup;
    for (int64_t i = 0; i < count; ++i) {
      const float scale = encode_nf4<T>(all, part, first + i);
      if (threadIdx.x == 0) {
        scales[i] = scale;
      }
    }
    __syncthreads();
    if (all.format.compact_scales) {
      store_compact(all, view_of(all, part, first), scales, count);
    } else {
      float* to = view_of(all, part, first).scale;
      for (int64_t i = threadIdx.x; i < count; i += kThreads) {
        to[i] = scales[i];
      }
    }
    __syncthreads(); // the next group overwrites the scales
  }
}

/// Of the block of nf4 at `first`. @tparam T of the values.
template <typename T>
__device__ float nf4_scale(const BlockArrays& all, const BlockView& view) {
  if (!all.format.compact_scales) {
    return *view.scale;
  }
  const uint8_t byte = view.wire
                           [all.format.scales_begin(all.numel) +
                            view.first / all.format.block_numel];
  const ScaleLimits limits = reinterpret_cast<const ScaleLimits*>(
      view.wire +
      all.format.limits_begin(all.numel))[view.first / all.format.unit_numel()];
  const float above = __fmul_rn(compact_step(limits), static_cast<float>(byte));
  return widen(narrow<T>(wide_scale(byte, limits, above)));
}

/// Decodes nf4, kExpanded values a thread.
/// @param packs whether these are packs of memory.
template <typename T>
__global__ void __launch_bounds__(kExpandThreads) expand_nf4_kernel(
    const BlockArrays __grid_constant__ all,
    const bool packs) {
  __shared__ float table[16];
  if (threadIdx.x < 16) {
    table[threadIdx.x] = nf4_value(threadIdx.x);
  }
  __syncthreads();
  const int64_t of_part = (all.numel + kExpanded - 1) / kExpanded;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kExpandThreads;
  for (int64_t k =
           static_cast<int64_t>(blockIdx.x) * kExpandThreads + threadIdx.x;
       k < all.parts * of_part;
       k += stride) {
    const int64_t part = k / of_part;
    const int64_t first = (k - part * of_part) * kExpanded;
    const BlockView view = view_of(all, part, first / all.format.block_numel);
    const float scale = nf4_scale<T>(all, view);
    // The codes of a part end at a multiple of 16 bytes.
    const uint32_t codes =
        *reinterpret_cast<const uint32_t*>(view.wire + first / 2);
    Pack<T, kExpanded> values;
#pragma unroll
    for (int j = 0; j < kExpanded; ++j) {
      values.values[j] =
          narrow<T>(__fmul_rn(table[codes >> (4 * j) & 15], scale));
    }
    T* to = static_cast<T*>(all.values) + part * all.numel + first;
    if (packs) {
      store_pack(to, values);
    } else {
#pragma unroll
      for (int j = 0; j < kExpanded; ++j) {
        if (first + j < all.numel) {
          to[j] = values.values[j];
        }
      }
    }
  }
}

template <typename T>
cudaError_t launch_nf4(const BlockArrays& arrays, cudaStream_t stream) {
  const auto grid = [](int64_t blocks) {
    return dim3(
        static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, kMostBlocks)));
  };
  if (arrays.work == BlockWork::kEncode) {
    const int64_t blocks = arrays.format.blocks(arrays.numel);
    return launch(
        &encode_nf4_kernel<T>,
        grid(arrays.parts * ((blocks + kScaleGroup - 1) / kScaleGroup)),
        kThreads,
        stream,
        arrays);
  }
  const int64_t of_part = (arrays.numel + kExpanded - 1) / kExpanded;
  return launch(
      &expand_nf4_kernel<T>,
      grid((arrays.parts * of_part + kExpandThreads - 1) / kExpandThreads),
      kExpandThreads,
      stream,
      arrays,
      arrays.numel % kExpanded == 0 && is_aligned(arrays.values, 16));
}

} // namespace

cudaError_t launch_blocks(const BlockArrays& arrays, cudaStream_t stream) {
  const int64_t blocks = arrays.format.blocks(arrays.numel) *
                         (arrays.work == BlockWork::kSum ? 1 : arrays.parts);
  const dim3 grid(
      static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, kMostBlocks)));
  const auto with = [&]<typename T>(T) {
    if (arrays.format.type == CodeType::kNf4) {
      return launch_nf4<T>(arrays, stream);
    }
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
