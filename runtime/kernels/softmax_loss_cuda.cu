// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/softmax_loss_cuda.h"

#include "tessera/runtime/kernels/element_pack.cuh"
#include "tessera/runtime/kernels/launch.cuh"
#include "tessera/runtime/kernels/word_pack.cuh"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace tessera::runtime {

namespace {

constexpr int kMostLossThreads = 512;
constexpr int kLossBlocks = 2; // that fit on a multiprocessor
constexpr int kLossWarp = 32;
constexpr int kMostLossWarps = kMostLossThreads / kLossWarp;
// Packs of which a thread has loads under way at a time.
constexpr int kLossPacks = 4;
constexpr int64_t kMostLossRows = int64_t{1} << 20; // in a grid
constexpr float kLossInfinity = INFINITY;

/// kWidth elements of T in registers: of 16 bits, as words.
template <typename T, int kWidth>
using LossPack = std::conditional_t<
    sizeof(T) == 2 && kWidth % 2 == 0,
    Pack<uint32_t, (kWidth + 1) / 2>,
    Pack<T, kWidth>>;

template <typename T, int kWidth>
__device__ LossPack<T, kWidth> load_loss_pack(const T* from) {
  if constexpr (sizeof(T) == 2 && kWidth % 2 == 0) {
    return load_pack<kWidth / 2>(reinterpret_cast<const uint32_t*>(from));
  } else {
    return load_pack<kWidth>(from);
  }
}

template <int kWidth>
struct LossValues {
  float at[kWidth];
};

template <typename T, int kWidth>
__device__ LossValues<kWidth> values_of(const LossPack<T, kWidth>& pack) {
  LossValues<kWidth> result;
  if constexpr (sizeof(T) == 2 && kWidth % 2 == 0) {
#pragma unroll
    for (int k = 0; k < kWidth / 2; ++k) {
      widen_word<T>(pack.values[k], result.at[2 * k], result.at[2 * k + 1]);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      result.at[k] = widen(pack.values[k]);
    }
  }
  return result;
}

/// Adds values to the maximum and the sum of exponentials above it; neither
/// changes for -infinity.
template <int kWidth>
__device__ void add_values(
    SoftmaxLossSums& sums,
    const LossValues<kWidth>& values) {
  float max = values.at[0];
#pragma unroll
  for (int k = 1; k < kWidth; ++k) {
    max = fmaxf(max, values.at[k]);
  }
  if (max > sums.max) {
    sums.sum *= expf(sums.max - max);
    sums.max = max;
  }
  const float shift = sums.max == -kLossInfinity ? 0 : sums.max;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    sums.sum += expf(values.at[k] - shift);
  }
}

__device__ void add_sums(SoftmaxLossSums& sums, const SoftmaxLossSums& other) {
  if (other.max > sums.max) {
    sums.sum = sums.sum * expf(sums.max - other.max) + other.sum;
    sums.max = other.max;
  } else {
    // Without this, NaN from infinities.
    sums.sum += other.max == sums.max ? other.sum
                                      : other.sum * expf(other.max - sums.max);
  }
  sums.weighted += other.weighted;
  sums.weights += other.weights;
}

/// Over the threads of the block, for all of them, in an order that depends on
/// their number only. Two rows that follow each other have different turns.
__device__ SoftmaxLossSums block_sums(SoftmaxLossSums sums, unsigned turn) {
  for (int lanes = kLossWarp / 2; lanes > 0; lanes /= 2) {
    const SoftmaxLossSums other{
        __shfl_xor_sync(0xffffffff, sums.max, lanes),
        __shfl_xor_sync(0xffffffff, sums.sum, lanes),
        __shfl_xor_sync(0xffffffff, sums.weighted, lanes),
        __shfl_xor_sync(0xffffffff, sums.weights, lanes)};
    add_sums(sums, other);
  }
  __shared__ float shared[2 * 4 * kMostLossWarps];
  float* parts = shared + turn * (4 * kMostLossWarps);
  if (threadIdx.x % kLossWarp == 0) {
    float* part = parts + 4 * (threadIdx.x / kLossWarp);
    part[0] = sums.max;
    part[1] = sums.sum;
    part[2] = sums.weighted;
    part[3] = sums.weights;
  }
  __syncthreads();
  SoftmaxLossSums all{parts[0], parts[1], parts[2], parts[3]};
  for (unsigned warp = 1; warp < blockDim.x / kLossWarp; ++warp) {
    const float* part = parts + 4 * warp;
    add_sums(all, {part[0], part[1], part[2], part[3]});
  }
  return all;
}

/// Calls use(pack, first column) for the packs of this thread, and
/// use_one(column) for its columns behind all packs.
template <typename T, int kWidth, typename Use, typename UseOne>
__device__ void for_loss_packs(
    const T* row,
    int classes,
    const Use& use,
    const UseOne& use_one) {
  const int step = static_cast<int>(blockDim.x) * kWidth;
  const int packed = classes - classes % kWidth;
  for (int first = static_cast<int>(threadIdx.x) * kWidth; first < packed;
       first += kLossPacks * step) {
    LossPack<T, kWidth> packs[kLossPacks];
#pragma unroll
    for (int p = 0; p < kLossPacks; ++p) {
      if (first + p * step < packed) {
        packs[p] = load_loss_pack<T, kWidth>(row + first + p * step);
      }
    }
#pragma unroll
    for (int p = 0; p < kLossPacks; ++p) {
      if (first + p * step < packed) {
        use(packs[p], first + p * step);
      }
    }
  }
  const int one = packed + static_cast<int>(threadIdx.x);
  if (one < classes) {
    use_one(one);
  }
}

__device__ float class_weight(const SoftmaxLossRows& in, int column) {
  return in.class_weights == nullptr ? 1 : in.class_weights[column];
}

/// A block per row, as often as there are more rows than blocks. A row is read
/// from memory once, and the second time from the cache.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMostLossThreads, kLossBlocks)
    softmax_loss_kernel(const SoftmaxLossRows __grid_constant__ in) {
  const int classes = static_cast<int>(in.classes);
  const bool smooths = in.label_smoothing != 0;
  unsigned turn = 0;
  for (int64_t row = blockIdx.x; row < in.rows; row += gridDim.x) {
    T* x = static_cast<T*>(in.logits) + row * in.row_stride;
    const int64_t target = in.targets[row];
    const auto fill_zeros = [&](int begin) {
      for (int i = begin + static_cast<int>(threadIdx.x);
           i < static_cast<int>(in.columns);
           i += static_cast<int>(blockDim.x)) {
        x[i] = narrow<T>(0.0F);
      }
    };
    if (target == in.ignore_index) {
      if (in.gradients) {
        fill_zeros(0);
      }
      if (threadIdx.x == 0) {
        in.losses[row] = 0;
      }
      continue;
    }
    const bool is_class = target >= 0 && target < in.classes;
    float logit = NAN;
    if (threadIdx.x == 0 && is_class) { // before it is written to
      logit = widen(x[target]);
    }
    SoftmaxLossSums sums{-kLossInfinity, 0, 0, 0};
    const auto add = [&](const auto& values, int first) {
      add_values(sums, values);
      if (smooths) {
        constexpr int kCount = sizeof(values.at) / sizeof(float);
        for (int k = 0; k < kCount; ++k) {
          const float weight = class_weight(in, first + k);
          sums.weights += weight;
          sums.weighted += weight * values.at[k];
        }
      }
    };
    for_loss_packs<T, kWidth>(
        x,
        classes,
        [&](const auto& pack, int first) {
          add(values_of<T, kWidth>(pack), first);
        },
        [&](int column) { add(LossValues<1>{{widen(x[column])}}, column); });
    sums = block_sums(sums, turn);
    turn ^= 1;
    if (sums.max == -kLossInfinity) { // as LibTorch's
      sums.sum = NAN;
    }
    const float weight =
        is_class ? class_weight(in, static_cast<int>(target)) : 1;
    const SoftmaxLossFactors factors =
        softmax_loss_factors(in, sums, logf(sums.sum), logit, weight);
    if (threadIdx.x == 0) {
      in.losses[row] = factors.loss;
    }
    if (!in.gradients) {
      continue;
    }
    const auto gradient = [&](float value, int column) {
      float result = expf(value - sums.max) * factors.exponential;
      if (smooths) {
        result -= factors.spread * class_weight(in, column);
      }
      return column == target ? result - factors.target : result;
    };
    for_loss_packs<T, kWidth>(
        x,
        classes,
        [&](const auto& pack, int first) {
          const auto values = values_of<T, kWidth>(pack);
          Pack<T, kWidth> result;
#pragma unroll
          for (int k = 0; k < kWidth; ++k) {
            result.values[k] = narrow<T>(gradient(values.at[k], first + k));
          }
          store_pack(x + first, result);
        },
        [&](int column) {
          x[column] = narrow<T>(gradient(widen(x[column]), column));
        });
    fill_zeros(classes);
  }
}

template <typename T>
cudaError_t launch_loss_of(const SoftmaxLossRows& in, cudaStream_t stream) {
  constexpr int kPack = 16 / sizeof(T);
  const bool packed = in.row_stride % kPack == 0 &&
                      is_aligned(in.logits, kPackAlignment<T, kPack>);
  const int64_t work = packed ? in.classes / kPack : in.classes;
  const auto blocks = static_cast<unsigned>(std::min(in.rows, kMostLossRows));
  return launch(
      packed ? &softmax_loss_kernel<T, kPack> : &softmax_loss_kernel<T, 1>,
      dim3(blocks),
      threads_for(work, kMostLossThreads),
      stream,
      in);
}

} // namespace

cudaError_t launch_softmax_loss(
    const SoftmaxLossRows& in,
    cudaStream_t stream) {
  switch (in.type) {
    case LowPrecision::kNone:
      return launch_loss_of<float>(in, stream);
    case LowPrecision::kFloat16:
      return launch_loss_of<__half>(in, stream);
    case LowPrecision::kBFloat16:
      return launch_loss_of<__nv_bfloat16>(in, stream);
  }
  return cudaErrorInvalidValue;
}

} // namespace tessera::runtime
