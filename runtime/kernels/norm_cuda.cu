// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/norm_cuda.h"

#include "tessera/runtime/kernels/element_pack.cuh"
#include "tessera/runtime/kernels/launch.cuh"

#include <algorithm>

namespace tessera::runtime {

namespace {

constexpr int kMostThreads = 256;
// Elements that a thread moves at once.
constexpr int kPack = 4;
constexpr int64_t kMostBlocks = int64_t{1} << 20;

/// kWidth elements as float32.
template <int kWidth>
struct Values {
  float at[kWidth];
};

template <int kWidth, typename T>
__device__ Values<kWidth> load(const T* from) {
  const auto pack = load_pack<kWidth>(from);
  Values<kWidth> result;
  for (int k = 0; k < kWidth; ++k) {
    result.at[k] = widen(pack.values[k]);
  }
  return result;
}

/// The parameters of elements i, i + 1, ... of a row.
/// @param from those of the matrix, or null.
/// @param first number of those of the row's group.
template <int kWidth>
__device__ Values<kWidth> load_or(
    const float* from,
    int64_t first,
    int64_t i,
    int64_t spatial,
    float other) {
  if (from != nullptr && spatial == 1) {
    return load<kWidth>(from + first + i);
  }
  Values<kWidth> result;
  int64_t parameter = from != nullptr ? i / spatial : 0;
  int64_t rest = i - parameter * spatial;
  for (int k = 0; k < kWidth; ++k) {
    result.at[k] = from != nullptr ? from[first + parameter] : other;
    if (++rest == spatial) {
      rest = 0;
      ++parameter;
    }
  }
  return result;
}

__device__ int64_t first_parameter(const NormRows& in, int64_t row) {
  return row % in.groups * (in.features / in.spatial);
}

template <int kWidth, typename T>
__device__ void store(T* to, const Values<kWidth>& values) {
  Pack<T, kWidth> pack;
  for (int k = 0; k < kWidth; ++k) {
    pack.values[k] = narrow<T>(values.at[k]);
  }
  store_pack(to, pack);
}

/// The sum over the threads of the block, for all of them, always added in the
/// same order.
__device__ float block_sum(float local) {
  __shared__ float shared[kMostThreads];
  shared[threadIdx.x] = local;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      shared[threadIdx.x] += shared[threadIdx.x + half];
    }
  }
  __syncthreads();
  const float sum = shared[0];
  __syncthreads(); // the next sum overwrites it
  return sum;
}

/// Calls body(i) for the packs of a row that are this thread's.
template <int kWidth, typename Body>
__device__ void for_row(int64_t features, const Body& body) {
  for (int64_t i = int64_t{threadIdx.x} * kWidth; i < features;
       i += int64_t{blockDim.x} * kWidth) {
    body(i);
  }
}

/// A block per row, as often as there are more rows than blocks.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMostThreads)
    norm_kernel(const NormForward __grid_constant__ norm) {
  const int64_t features = norm.in.features;
  const auto count = static_cast<float>(features);
  for (int64_t row = blockIdx.x; row < norm.in.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(norm.in.x) + row * features;
    T* y = static_cast<T*>(norm.y) + row * features;
    const int64_t first = first_parameter(norm.in, row);
    float mean = 0;
    if (norm.in.centered) {
      float sum = 0;
      for_row<kWidth>(features, [&](int64_t i) {
        const auto values = load<kWidth>(x + i);
        for (int k = 0; k < kWidth; ++k) {
          sum += values.at[k];
        }
      });
      mean = block_sum(sum) / count;
    }
    // In a pass of its own: the squares less those of the mean would cancel.
    float squares = 0;
    for_row<kWidth>(features, [&](int64_t i) {
      const auto values = load<kWidth>(x + i);
      for (int k = 0; k < kWidth; ++k) {
        const float centered = values.at[k] - mean;
        squares += centered * centered;
      }
    });
    const float rstd =
        __fdiv_rn(1, __fsqrt_rn(block_sum(squares) / count + norm.eps));
    for_row<kWidth>(features, [&](int64_t i) {
      auto values = load<kWidth>(x + i);
      const auto weight =
          load_or<kWidth>(norm.in.weight, first, i, norm.in.spatial, 1);
      const auto bias =
          load_or<kWidth>(norm.bias, first, i, norm.in.spatial, 0);
      for (int k = 0; k < kWidth; ++k) {
        values.at[k] = (values.at[k] - mean) * rstd * weight.at[k] + bias.at[k];
      }
      store<kWidth>(y + i, values);
    });
    if (threadIdx.x == 0) {
      norm.rstd[row] = rstd;
      if (norm.in.centered) {
        norm.mean[row] = mean;
      }
    }
  }
}

/// gradient_x; blocks as norm_kernel().
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMostThreads)
    norm_backward_x_kernel(const NormBackward __grid_constant__ norm) {
  const int64_t features = norm.in.features;
  const auto count = static_cast<float>(features);
  for (int64_t row = blockIdx.x; row < norm.in.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(norm.in.x) + row * features;
    const T* gradient = static_cast<const T*>(norm.gradient) + row * features;
    T* gradient_x = static_cast<T*>(norm.gradient_x) + row * features;
    const int64_t first = first_parameter(norm.in, row);
    const float mean = norm.in.centered ? norm.mean[row] : 0;
    const float rstd = norm.rstd[row];
    // Calls use(i, normed x, gradient with respect to it).
    const auto for_packs = [&](const auto& use) {
      for_row<kWidth>(features, [&](int64_t i) {
        auto normed = load<kWidth>(x + i);
        auto scaled = load<kWidth>(gradient + i);
        const auto weight =
            load_or<kWidth>(norm.in.weight, first, i, norm.in.spatial, 1);
        for (int k = 0; k < kWidth; ++k) {
          normed.at[k] = (normed.at[k] - mean) * rstd;
          scaled.at[k] *= weight.at[k];
        }
        use(i, normed, scaled);
      });
    };
    float sum = 0;
    float product = 0;
    for_packs([&](int64_t, const auto& normed, const auto& scaled) {
      for (int k = 0; k < kWidth; ++k) {
        sum += scaled.at[k];
        product += scaled.at[k] * normed.at[k];
      }
    });
    const float product_mean = block_sum(product) / count;
    const float sum_mean = norm.in.centered ? block_sum(sum) / count : 0;
    for_packs([&](int64_t i, const auto& normed, auto scaled) {
      for (int k = 0; k < kWidth; ++k) {
        scaled.at[k] =
            rstd * (scaled.at[k] - sum_mean - normed.at[k] * product_mean);
      }
      store<kWidth>(gradient_x + i, scaled);
    });
  }
}

/// A block adds up one parameter of one part of the samples, of which each has
/// a row per group.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMostThreads)
    norm_backward_channels_kernel(const NormBackward __grid_constant__ norm) {
  const int64_t features = norm.in.features;
  const int64_t spatial = norm.in.spatial;
  const int64_t per_group = features / spatial;
  const int64_t group = int64_t{blockIdx.x} / per_group;
  const int64_t begin = int64_t{blockIdx.x} % per_group * spatial;
  const int64_t samples = norm.in.rows / norm.in.groups;
  const int64_t per_part = (samples + norm.parts - 1) / norm.parts;
  const int64_t first = per_part * int64_t{blockIdx.y};
  const int64_t end = first + per_part < samples ? first + per_part : samples;
  float local_weight = 0;
  float local_bias = 0;
  for (int64_t sample = first; sample < end; ++sample) {
    const int64_t row = sample * norm.in.groups + group;
    const T* x = static_cast<const T*>(norm.in.x) + row * features + begin;
    const T* gradient =
        static_cast<const T*>(norm.gradient) + row * features + begin;
    const float mean = norm.in.centered ? norm.mean[row] : 0;
    const float rstd = norm.rstd[row];
    for_row<kWidth>(spatial, [&](int64_t i) {
      const auto values = load<kWidth>(x + i);
      const auto local = load<kWidth>(gradient + i);
      for (int k = 0; k < kWidth; ++k) {
        local_weight += local.at[k] * (values.at[k] - mean) * rstd;
        local_bias += local.at[k];
      }
    });
  }
  const float weight = block_sum(local_weight);
  const float bias = block_sum(local_bias);
  const int64_t place = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0 && norm.gradient_weight != nullptr) {
    norm.gradient_weight[place] = weight;
  }
  if (threadIdx.x == 0 && norm.gradient_bias != nullptr) {
    norm.gradient_bias[place] = bias;
  }
}

/// A thread adds up kWidth columns of one part of the rows, which are one group
/// without neighbours that share a parameter.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMostThreads)
    norm_backward_parameters_kernel(const NormBackward __grid_constant__ norm) {
  const int64_t features = norm.in.features;
  const int64_t column =
      (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kWidth;
  if (column >= features) {
    return;
  }
  const T* x = static_cast<const T*>(norm.in.x) + column;
  const T* gradient = static_cast<const T*>(norm.gradient) + column;
  const int64_t per_part = (norm.in.rows + norm.parts - 1) / norm.parts;
  const int64_t first = per_part * int64_t{blockIdx.y};
  const int64_t end =
      first + per_part < norm.in.rows ? first + per_part : norm.in.rows;
  Pack<float, kWidth> weight{};
  Pack<float, kWidth> bias{};
  for (int64_t row = first; row < end; ++row) {
    const auto values = load<kWidth>(x + row * features);
    const auto local = load<kWidth>(gradient + row * features);
    const float mean = norm.in.centered ? norm.mean[row] : 0;
    const float rstd = norm.rstd[row];
    for (int k = 0; k < kWidth; ++k) {
      weight.values[k] += local.at[k] * (values.at[k] - mean) * rstd;
      bias.values[k] += local.at[k];
    }
  }
  const int64_t place = int64_t{blockIdx.y} * features + column;
  if (norm.gradient_weight != nullptr) {
    store_pack(norm.gradient_weight + place, weight);
  }
  if (norm.gradient_bias != nullptr) {
    store_pack(norm.gradient_bias + place, bias);
  }
}

/// A power of two, at least a warp: a thread for each of `work`, up to a limit.
int threads_for(int64_t work) {
  int threads = 32;
  while (threads < kMostThreads && threads < work) {
    threads *= 2;
  }
  return threads;
}

/// Whether arrays of `features` columns can be read in packs, all rows of them.
template <typename... Pointers>
bool fits_packs(int64_t features, const Pointers*... arrays) {
  // As packs of float32, for all.
  return features % kPack == 0 &&
         (is_aligned(arrays, kPackAlignment<float, kPack>) && ...);
}

template <typename Call>
cudaError_t with_type(LowPrecision type, const Call& call) {
  switch (type) {
    case LowPrecision::kBFloat16:
      return call(__nv_bfloat16{});
    case LowPrecision::kFloat16:
      return call(__half{});
    case LowPrecision::kNone:
      break;
  }
  return cudaErrorInvalidValue;
}

dim3 blocks_of(const NormRows& in) {
  return dim3(
      static_cast<unsigned>(std::clamp<int64_t>(in.rows, 1, kMostBlocks)));
}

} // namespace

int64_t norm_backward_parts(int64_t rows) {
  return std::clamp<int64_t>(rows / 32, 1, 256);
}

cudaError_t launch_norm(const NormForward& norm, cudaStream_t stream) {
  const bool packed = fits_packs(
      norm.in.features, norm.in.x, norm.in.weight, norm.bias, norm.y);
  const int threads =
      threads_for(packed ? norm.in.features / kPack : norm.in.features);
  return with_type(norm.in.type, [&]<typename T>(T) {
    return launch(
        packed ? &norm_kernel<T, kPack> : &norm_kernel<T, 1>,
        blocks_of(norm.in),
        threads,
        stream,
        norm);
  });
}

cudaError_t launch_norm_backward(
    const NormBackward& norm,
    cudaStream_t stream) {
  return with_type(norm.in.type, [&]<typename T>(T) {
    cudaError_t error = cudaSuccess;
    if (norm.gradient_x != nullptr) {
      const bool packed = fits_packs(
          norm.in.features,
          norm.in.x,
          norm.in.weight,
          norm.gradient,
          norm.gradient_x);
      error = launch(
          packed ? &norm_backward_x_kernel<T, kPack>
                 : &norm_backward_x_kernel<T, 1>,
          blocks_of(norm.in),
          threads_for(packed ? norm.in.features / kPack : norm.in.features),
          stream,
          norm);
    }
    if (error == cudaSuccess &&
        (norm.gradient_weight != nullptr || norm.gradient_bias != nullptr)) {
      const auto threads = [](bool packed, int64_t work) {
        return threads_for(packed ? work / kPack : work);
      };
      if (norm.in.groups > 1 || norm.in.spatial > 1) {
        const bool packed =
            fits_packs(norm.in.spatial, norm.in.x, norm.gradient);
        const dim3 grid(
            static_cast<unsigned>(
                norm.in.groups * (norm.in.features / norm.in.spatial)),
            static_cast<unsigned>(norm.parts));
        return launch(
            packed ? &norm_backward_channels_kernel<T, kPack>
                   : &norm_backward_channels_kernel<T, 1>,
            grid,
            threads(packed, norm.in.spatial),
            stream,
            norm);
      }
      const bool packed = fits_packs(
          norm.in.features,
          norm.in.x,
          norm.gradient,
          norm.gradient_weight,
          norm.gradient_bias);
      const int64_t per_block =
          int64_t{threads(packed, norm.in.features)} * (packed ? kPack : 1);
      const dim3 grid(
          static_cast<unsigned>((norm.in.features + per_block - 1) / per_block),
          static_cast<unsigned>(norm.parts));
      error = launch(
          packed ? &norm_backward_parameters_kernel<T, kPack>
                 : &norm_backward_parameters_kernel<T, 1>,
          grid,
          threads(packed, norm.in.features),
          stream,
          norm);
    }
    return error;
  });
}

} // namespace tessera::runtime
