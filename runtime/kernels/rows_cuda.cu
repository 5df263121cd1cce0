// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/rows_cuda.h"

#include "tessera/runtime/kernels/element_pack.cuh"
#include "tessera/runtime/kernels/launch.cuh"

#include <algorithm>

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

constexpr int kCopyThreads = 256;
// Elements of a row of which a thread has loads under way at a time.
constexpr int kCopyElements = 8;
constexpr int64_t kCopyRows = 1024;

/// Rows that begin at odd addresses leave no wider accesses than of elements.
__global__ void __launch_bounds__(kCopyThreads)
    copy_rows_kernel(const RowCopy __grid_constant__ in) {
  const int64_t first =
      int64_t{blockIdx.x} * kCopyThreads * kCopyElements + threadIdx.x;
  for (int64_t row = blockIdx.y; row < in.rows; row += gridDim.y) {
    const uint16_t* from =
        static_cast<const uint16_t*>(in.from) + row * in.from_stride;
    uint16_t* to = static_cast<uint16_t*>(in.to) + row * in.to_stride;
    uint16_t elements[kCopyElements]{};
#pragma unroll
    for (int k = 0; k < kCopyElements; ++k) {
      const int64_t i = first + int64_t{k} * kCopyThreads;
      if (i < in.columns) {
        elements[k] = from[i];
      }
    }
#pragma unroll
    for (int k = 0; k < kCopyElements; ++k) {
      const int64_t i = first + int64_t{k} * kCopyThreads;
      if (i < in.columns) {
        to[i] = elements[k];
      }
    }
  }
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

cudaError_t launch_copy_rows(const RowCopy& in, cudaStream_t stream) {
  constexpr int64_t kPerBlock = int64_t{kCopyThreads} * kCopyElements;
  const dim3 grid(
      static_cast<unsigned>((in.columns + kPerBlock - 1) / kPerBlock),
      static_cast<unsigned>(std::min(in.rows, kCopyRows)));
  return launch(&copy_rows_kernel, grid, kCopyThreads, stream, in);
}

} // namespace tessera::runtime
