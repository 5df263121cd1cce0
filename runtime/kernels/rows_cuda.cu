// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/rows_cuda.h"

#include "tessera/runtime/kernels/element_pack.cuh"
#include "tessera/runtime/kernels/launch.cuh"

#include <algorithm>
#include <iterator>

namespace tessera::runtime {

namespace {

constexpr int kMostBiasThreads = 256;
// Rows of which a thread has loads under way at a time.
constexpr int kBiasRows = 4;
constexpr int64_t kMostBiasBlocks = 65535; // CUDA's limit of a grid's y

/// A thread adds to kWidth columns, in the rows of its block, kBiasRows at a
/// time.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMostBiasThreads)
    add_bias_kernel(const BiasRows __grid_constant__ in) {
  const int64_t column =
      (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kWidth;
  if (column >= in.features) {
    return;
  }
  const auto bias = load_pack<kWidth>(static_cast<const T*>(in.bias) + column);
  T* x = static_cast<T*>(in.x) + column;
  for (int64_t first = int64_t{blockIdx.y} * kBiasRows; first < in.rows;
       first += int64_t{gridDim.y} * kBiasRows) {
    Pack<T, kWidth> packs[kBiasRows]{};
#pragma unroll
    for (int r = 0; r < kBiasRows; ++r) {
      if (first + r < in.rows) {
        packs[r] = load_pack<kWidth>(x + (first + r) * in.features);
      }
    }
#pragma unroll
    for (int r = 0; r < kBiasRows; ++r) {
      if (first + r < in.rows) {
        for (int k = 0; k < kWidth; ++k) {
          packs[r].values[k] =
              narrow<T>(widen(packs[r].values[k]) + widen(bias.values[k]));
        }
        store_pack(x + (first + r) * in.features, packs[r]);
      }
    }
  }
}

// Of a block of column sums: kSumLanes threads beside each other, kSumTeams
// times.
constexpr int kSumLanes = 32;
constexpr int kSumTeams = 8;
constexpr int kSumThreads = kSumLanes * kSumTeams;
// Rows of which a thread has loads under way at a time.
constexpr int kSumRows = 4;

/// One matrix of rows to sums over the rows of each block.
struct SumPass {
  const void* x; ///< [rows, features]
  void* sums; ///< [gridDim.y, features]
  int64_t rows;
  int64_t features;
};

/// A thread adds up kWidth columns of each (kSumTeams * gridDim.y)th row; then
/// the first team of a block adds up what its teams have.
template <typename From, typename To, int kWidth>
__global__ void __launch_bounds__(kSumThreads)
    column_sums_kernel(const SumPass __grid_constant__ in) {
  __shared__ float sums_of_teams[kSumTeams][kSumLanes * kWidth];
  const unsigned lane = threadIdx.x % kSumLanes;
  const unsigned team = threadIdx.x / kSumLanes;
  const int64_t column = (int64_t{blockIdx.x} * kSumLanes + lane) * kWidth;
  const bool is_column = column < in.features;
  float sums[kWidth]{};
  if (is_column) {
    const From* x = static_cast<const From*>(in.x) + column;
    const int64_t step = int64_t{gridDim.y} * kSumTeams;
    for (int64_t first = int64_t{blockIdx.y} * kSumTeams + team;
         first < in.rows;
         first += step * kSumRows) {
      Pack<From, kWidth> packs[kSumRows]{};
#pragma unroll
      for (int r = 0; r < kSumRows; ++r) {
        if (first + r * step < in.rows) {
          packs[r] = load_pack<kWidth>(x + (first + r * step) * in.features);
        }
      }
#pragma unroll
      for (int r = 0; r < kSumRows; ++r) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          sums[k] += widen(packs[r].values[k]);
        }
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    sums_of_teams[team][k * kSumLanes + lane] = sums[k];
  }
  __syncthreads();
  if (team > 0 || !is_column) {
    return;
  }
  Pack<To, kWidth> result;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    float sum = sums[k];
#pragma unroll
    for (int other = 1; other < kSumTeams; ++other) {
      sum += sums_of_teams[other][k * kSumLanes + lane];
    }
    result.values[k] = narrow<To>(sum);
  }
  store_pack(
      static_cast<To*>(in.sums) + int64_t{blockIdx.y} * in.features + column,
      result);
}

constexpr int kCopyThreads = 256;
// What a thread has under way at a time: words of two elements, or packs.
constexpr int kCopyWords = 8;
constexpr int kCopyPacks = 4;
constexpr int kCopyPack = 8;
constexpr int64_t kCopyRows = 4096;

/// Calls copy(from, to) for the rows of this block.
template <typename Copy>
__device__ void for_copied_rows(const RowCopy& in, const Copy& copy) {
  for (int64_t i = blockIdx.y; i < in.batches * in.rows; i += gridDim.y) {
    const int64_t batch = in.batches == 1 ? 0 : i / in.rows;
    const int64_t row = i - batch * in.rows;
    copy(
        static_cast<const uint16_t*>(in.from) + batch * in.from_batch_stride +
            row * in.from_stride,
        static_cast<uint16_t*>(in.to) + batch * in.to_batch_stride +
            row * in.to_stride);
  }
}

/// All rows begin at multiples of 16 bytes, and are multiples of 16 bytes long.
__global__ void __launch_bounds__(kCopyThreads)
    copy_packs_kernel(const RowCopy __grid_constant__ in) {
  const int64_t first =
      (int64_t{blockIdx.x} * kCopyThreads * kCopyPacks + threadIdx.x) *
      kCopyPack;
  for_copied_rows(in, [&](const uint16_t* from, uint16_t* to) {
    Pack<uint16_t, kCopyPack> packs[kCopyPacks]{};
#pragma unroll
    for (int k = 0; k < kCopyPacks; ++k) {
      const int64_t i = first + int64_t{k} * kCopyThreads * kCopyPack;
      if (i < in.columns) {
        packs[k] = load_pack<kCopyPack>(from + i);
      }
    }
#pragma unroll
    for (int k = 0; k < kCopyPacks; ++k) {
      const int64_t i = first + int64_t{k} * kCopyThreads * kCopyPack;
      if (i < in.columns) {
        store_pack(to + i, packs[k]);
      }
    }
  });
}

/// Two neighboring elements at any address. A word that begins at an even one
/// has both; else each of two words has one.
/// @param is_last whether nothing behind them may be read.
__device__ inline uint32_t load_pair(
    const uint16_t* from,
    bool is_odd,
    bool is_last) {
  if (!is_odd) {
    return *reinterpret_cast<const uint32_t*>(from);
  }
  if (is_last) {
    return from[0] | static_cast<uint32_t>(from[1]) << 16;
  }
  const auto* words = reinterpret_cast<const uint32_t*>(from - 1);
  return words[0] >> 16 | words[1] << 16;
}

/// Rows that begin at odd elements leave no wider stores than of two elements.
__global__ void __launch_bounds__(kCopyThreads)
    copy_rows_kernel(const RowCopy __grid_constant__ in) {
  const int64_t first =
      int64_t{blockIdx.x} * kCopyThreads * kCopyWords + threadIdx.x;
  for_copied_rows(in, [&](const uint16_t* from, uint16_t* to) {
    // The first element alone where the others then are words.
    const int64_t head = is_aligned(to, sizeof(uint32_t)) ? 0 : 1;
    const int64_t words = (in.columns - head) / 2;
    const uint16_t* pairs = from + head;
    const bool is_odd = !is_aligned(pairs, sizeof(uint32_t));
    uint32_t moved[kCopyWords]{};
#pragma unroll
    for (int k = 0; k < kCopyWords; ++k) {
      const int64_t i = first + int64_t{k} * kCopyThreads;
      if (i < words) {
        moved[k] = load_pair(pairs + 2 * i, is_odd, i + 1 == words);
      }
    }
    auto* targets = reinterpret_cast<uint32_t*>(to + head);
#pragma unroll
    for (int k = 0; k < kCopyWords; ++k) {
      const int64_t i = first + int64_t{k} * kCopyThreads;
      if (i < words) {
        store_word(targets + i, moved[k]);
      }
    }
    if (first == 0) {
      if (head > 0) {
        to[0] = from[0];
      }
      if (head + 2 * words < in.columns) {
        to[in.columns - 1] = from[in.columns - 1];
      }
    }
  });
}

bool is_packed(const RowCopy& in) {
  constexpr size_t kBytes = kPackAlignment<uint16_t, kCopyPack>;
  const int64_t sizes[] = {
      in.columns,
      in.from_stride,
      in.to_stride,
      in.from_batch_stride,
      in.to_batch_stride};
  return is_aligned(in.from, kBytes) && is_aligned(in.to, kBytes) &&
         std::all_of(std::begin(sizes), std::end(sizes), [](int64_t size) {
           return size % kCopyPack == 0;
         });
}

template <typename T>
cudaError_t launch_of(const BiasRows& in, cudaStream_t stream) {
  constexpr int kPack = 16 / sizeof(T);
  const bool packed = in.features % kPack == 0 &&
                      is_aligned(in.x, kPackAlignment<T, kPack>) &&
                      is_aligned(in.bias, kPackAlignment<T, kPack>);
  const int64_t columns = packed ? in.features / kPack : in.features;
  const int threads = threads_for(columns, kMostBiasThreads);
  const dim3 grid(
      static_cast<unsigned>((columns + threads - 1) / threads),
      static_cast<unsigned>(std::clamp<int64_t>(
          (in.rows + kBiasRows - 1) / kBiasRows, 1, kMostBiasBlocks)));
  return launch(
      packed ? &add_bias_kernel<T, kPack> : &add_bias_kernel<T, 1>,
      grid,
      threads,
      stream,
      in);
}

/// @param packed whether rows and results may be moved in packs of kPack.
template <typename From, typename To, int kPack>
cudaError_t launch_sum_pass(
    const SumPass& in,
    int64_t parts,
    bool packed,
    cudaStream_t stream) {
  const int64_t columns = int64_t{kSumLanes} * (packed ? kPack : 1);
  const dim3 grid(
      static_cast<unsigned>((in.features + columns - 1) / columns),
      static_cast<unsigned>(parts));
  return launch(
      packed ? &column_sums_kernel<From, To, kPack>
             : &column_sums_kernel<From, To, 1>,
      grid,
      kSumThreads,
      stream,
      in);
}

template <typename T>
cudaError_t launch_sums(const ColumnSums& in, cudaStream_t stream) {
  constexpr int kPack = 16 / sizeof(T);
  constexpr int kPartPack = 4;
  const int64_t parts = column_sum_parts(in.rows, in.features);
  const bool parts_packed = in.features % kPack == 0 &&
                            is_aligned(in.parts, kPackAlignment<float, kPack>);
  const cudaError_t error = launch_sum_pass<T, float, kPack>(
      {in.x, in.parts, in.rows, in.features},
      parts,
      parts_packed && is_aligned(in.x, kPackAlignment<T, kPack>),
      stream);
  if (error != cudaSuccess) {
    return error;
  }
  return launch_sum_pass<float, T, kPartPack>(
      {in.parts, in.sums, parts, in.features},
      /*parts=*/1,
      parts_packed && is_aligned(in.sums, kPackAlignment<T, kPartPack>),
      stream);
}

} // namespace

cudaError_t launch_add_bias(const BiasRows& in, cudaStream_t stream) {
  switch (in.type) {
    case ElementType::kFloat32:
      return launch_of<float>(in, stream);
    case ElementType::kFloat16:
      return launch_of<__half>(in, stream);
    case ElementType::kBFloat16:
      return launch_of<__nv_bfloat16>(in, stream);
    case ElementType::kFloat64:
      break;
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_column_sums(const ColumnSums& in, cudaStream_t stream) {
  switch (in.type) {
    case ElementType::kFloat32:
      return launch_sums<float>(in, stream);
    case ElementType::kFloat16:
      return launch_sums<__half>(in, stream);
    case ElementType::kBFloat16:
      return launch_sums<__nv_bfloat16>(in, stream);
    case ElementType::kFloat64:
      break;
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_copy_rows(const RowCopy& in, cudaStream_t stream) {
  const bool packed = is_packed(in);
  const int64_t per_block = packed
                                ? int64_t{kCopyThreads} * kCopyPacks * kCopyPack
                                : int64_t{kCopyThreads} * kCopyWords * 2;
  const dim3 grid(
      static_cast<unsigned>((in.columns + per_block - 1) / per_block),
      static_cast<unsigned>(std::min(in.batches * in.rows, kCopyRows)));
  return launch(
      packed ? &copy_packs_kernel : &copy_rows_kernel,
      grid,
      kCopyThreads,
      stream,
      in);
}

} // namespace tessera::runtime
