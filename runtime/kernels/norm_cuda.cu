// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/norm_cuda.h"

#include "tessera/runtime/kernels/element_pack.cuh"
#include "tessera/runtime/kernels/launch.cuh"
#include "tessera/runtime/kernels/word_pack.cuh"

#include <algorithm>
#include <bit>
#include <type_traits>

namespace tessera::runtime {

namespace {

constexpr int kMostThreads = 256;
constexpr int kWarp = 32;
// Elements that a thread moves at once: of a row that stays in registers, 16
// bytes, and of another one.
constexpr int kRowPack = 8;
constexpr int kPack = 4;
// Of a row in registers, for each thread.
constexpr int kMostPacks = 4;
// Blocks of kMostThreads, or as many threads, that fit on a multiprocessor.
constexpr int kRowBlocks = 4;
// Threads of a block whose rows have a warp or a part of one each.
constexpr int kTeamsThreads = 128;
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

/// The parameters of a pack whose elements have one each.
/// @param from the first one, or null.
template <int kWidth>
__device__ Values<kWidth> load_or(const float* from, int64_t i, float other) {
  if (from != nullptr) {
    return load<kWidth>(from + i);
  }
  Values<kWidth> result;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    result.at[k] = other;
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
  if (from == nullptr || spatial == 1) {
    return load_or<kWidth>(from, first + i, other);
  }
  Values<kWidth> result;
  int64_t parameter = i / spatial;
  int64_t rest = i - parameter * spatial;
  for (int k = 0; k < kWidth; ++k) {
    result.at[k] = from[first + parameter];
    if (++rest == spatial) {
      rest = 0;
      ++parameter;
    }
  }
  return result;
}

__device__ int64_t first_parameter(const NormRows& in, int64_t row) {
  // Divisions of 64 bits take longer than a short row.
  return in.groups == 1 ? 0 : row % in.groups * (in.features / in.spatial);
}

template <int kWidth, typename T>
__device__ void store(T* to, const Values<kWidth>& values) {
  Pack<T, kWidth> pack;
  for (int k = 0; k < kWidth; ++k) {
    pack.values[k] = narrow<T>(values.at[k]);
  }
  store_pack(to, pack);
}

/// The sums of the warps of a block, for two exchanges.
__device__ float* sums_of_warps() {
  __shared__ float sums[2 * 2 * (kMostThreads / kWarp)];
  return sums;
}

/// Sums over the threads of a team, for all of them, always added in the same
/// order. A team is a power of two of neighboring threads: the block, or a warp
/// or a part of one.
class TeamSums {
 public:
  explicit __device__ TeamSums(unsigned team) : team_(team) {}

  /// Up to two sums at once. All threads of the block take part.
  template <int kSums>
  __device__ Values<kSums> operator()(Values<kSums> sums) {
    // Both of two threads add the same two numbers.
    for (unsigned lanes = (team_ < kWarp ? team_ : kWarp) / 2; lanes > 0;
         lanes /= 2) {
#pragma unroll
      for (int k = 0; k < kSums; ++k) {
        sums.at[k] +=
            __shfl_xor_sync(0xffffffff, sums.at[k], static_cast<int>(lanes));
      }
    }
    if (team_ <= kWarp) {
      return sums;
    }
    const unsigned warps = team_ / kWarp;
    // The other half may still be read; when all come to this barrier they
    // have.
    float* shared = sums_of_warps() + turn_ * (2 * (kMostThreads / kWarp));
    turn_ ^= 1;
    if (threadIdx.x % kWarp == 0) {
#pragma unroll
      for (int k = 0; k < kSums; ++k) {
        shared[k * warps + threadIdx.x / kWarp] = sums.at[k];
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kSums; ++k) {
      sums.at[k] = 0;
      for (unsigned warp = 0; warp < warps; ++warp) {
        sums.at[k] += shared[k * warps + warp];
      }
    }
    return sums;
  }

 private:
  unsigned team_;
  unsigned turn_ = 0; // the half of the shared memory
};

/// Calls body(i) for the packs of a row that are this thread's.
template <int kWidth, typename Body>
__device__ void for_row(int64_t features, const Body& body) {
  for (int64_t i = int64_t{threadIdx.x} * kWidth; i < features;
       i += int64_t{blockDim.x} * kWidth) {
    body(i);
  }
}

/// A row of a team whose threads keep it in registers.
struct TeamRow {
  int64_t row;
  int columns; ///< elements of the row; 0: there is no such row
  int column; ///< the first one of the thread
  int step; ///< from a pack of the thread to its next
};

/// Calls body(row) for the rows of this thread's team. Teams without one take
/// part as the others: their threads have to meet in sums.
template <typename Body>
__device__ void for_team_rows(
    const NormRows& in,
    unsigned team,
    const Body& body) {
  const unsigned teams = blockDim.x / team;
  const int column = static_cast<int>(threadIdx.x % team) * kRowPack;
  for (int64_t first = int64_t{blockIdx.x} * teams; first < in.rows;
       first += int64_t{gridDim.x} * teams) {
    const int64_t row = first + threadIdx.x / team;
    body(TeamRow{
        row,
        row < in.rows ? static_cast<int>(in.features) : 0,
        column,
        static_cast<int>(team) * kRowPack});
  }
}

/// Calls body(number of the pack, its first element) for the thread's packs.
template <int kPacks, typename Body>
__device__ void for_packs(const TeamRow& row, const Body& body) {
#pragma unroll
  for (int pack = 0; pack < kPacks; ++pack) {
    const int i = row.column + pack * row.step;
    if (i < row.columns) {
      body(pack, i);
    }
  }
}

/// A pack of T in registers.
using RowPack = Pack<uint32_t, kRowPack / 2>;

template <typename T>
__device__ RowPack load_row_pack(const T* from) {
  return load_pack<kRowPack / 2>(reinterpret_cast<const uint32_t*>(from));
}

template <typename T>
__device__ Values<kRowPack> widen(const RowPack& pack) {
  Values<kRowPack> result;
#pragma unroll
  for (int k = 0; k < kRowPack / 2; ++k) {
    widen_word<T>(pack.values[k], result.at[2 * k], result.at[2 * k + 1]);
  }
  return result;
}

/// Several rows or one row a block, as often as there are more rows than that;
/// a row is read once.
/// @param team threads of a row.
template <typename T, int kPacks>
__global__ void __launch_bounds__(kMostThreads, kRowBlocks)
    norm_row_kernel(const NormForward __grid_constant__ norm, unsigned team) {
  const auto count = static_cast<float>(norm.in.features);
  TeamSums team_sum(team);
  for_team_rows(norm.in, team, [&](const TeamRow& row) {
    const int64_t begin = row.row * norm.in.features;
    const T* x = static_cast<const T*>(norm.in.x) + begin;
    T* y = static_cast<T*>(norm.y) + begin;
    RowPack packs[kPacks];
    for_packs<kPacks>(
        row, [&](int pack, int i) { packs[pack] = load_row_pack(x + i); });
    float mean = 0;
    if (norm.in.centered) {
      Values<1> sum{};
      for_packs<kPacks>(row, [&](int pack, int) {
        const auto values = widen<T>(packs[pack]);
#pragma unroll
        for (int k = 0; k < kRowPack; ++k) {
          sum.at[0] += values.at[k];
        }
      });
      mean = team_sum(sum).at[0] / count;
    }
    // After the mean: the squares less those of the mean would cancel.
    Values<1> squares{};
    for_packs<kPacks>(row, [&](int pack, int) {
      const auto values = widen<T>(packs[pack]);
#pragma unroll
      for (int k = 0; k < kRowPack; ++k) {
        const float centered = values.at[k] - mean;
        squares.at[0] += centered * centered;
      }
    });
    const float rstd =
        __fdiv_rn(1, __fsqrt_rn(team_sum(squares).at[0] / count + norm.eps));
    const int64_t first = first_parameter(norm.in, row.row);
    for_packs<kPacks>(row, [&](int pack, int i) {
      auto values = widen<T>(packs[pack]);
      const auto weight = load_or<kRowPack>(norm.in.weight, first + i, 1);
      const auto bias = load_or<kRowPack>(norm.bias, first + i, 0);
#pragma unroll
      for (int k = 0; k < kRowPack; ++k) {
        values.at[k] = (values.at[k] - mean) * rstd * weight.at[k] + bias.at[k];
      }
      store<kRowPack>(y + i, values);
    });
    if (row.column == 0 && row.columns > 0) {
      norm.rstd[row.row] = rstd;
      if (norm.in.centered) {
        norm.mean[row.row] = mean;
      }
    }
  });
}

/// gradient_x; rows and teams as norm_row_kernel().
template <typename T, int kPacks>
__global__ void __launch_bounds__(kMostThreads, kRowBlocks)
    norm_backward_row_kernel(
        const NormBackward __grid_constant__ norm,
        unsigned team) {
  const auto count = static_cast<float>(norm.in.features);
  TeamSums team_sum(team);
  for_team_rows(norm.in, team, [&](const TeamRow& row) {
    const int64_t begin = row.row * norm.in.features;
    const T* x = static_cast<const T*>(norm.in.x) + begin;
    const T* gradient = static_cast<const T*>(norm.gradient) + begin;
    T* gradient_x = static_cast<T*>(norm.gradient_x) + begin;
    const bool is_row = row.columns > 0;
    RowPack packs[kPacks];
    RowPack gradients[kPacks];
    for_packs<kPacks>(row, [&](int pack, int i) {
      packs[pack] = load_row_pack(x + i);
      gradients[pack] = load_row_pack(gradient + i);
    });
    const float mean = is_row && norm.in.centered ? norm.mean[row.row] : 0;
    const float rstd = is_row ? norm.rstd[row.row] : 0;
    const int64_t first = first_parameter(norm.in, row.row);
    // Calls use(i, normed x, gradient with respect to it).
    const auto for_values = [&](const auto& use) {
      for_packs<kPacks>(row, [&](int pack, int i) {
        auto normed = widen<T>(packs[pack]);
        auto scaled = widen<T>(gradients[pack]);
        const auto weight = load_or<kRowPack>(norm.in.weight, first + i, 1);
#pragma unroll
        for (int k = 0; k < kRowPack; ++k) {
          normed.at[k] = (normed.at[k] - mean) * rstd;
          scaled.at[k] *= weight.at[k];
        }
        use(i, normed, scaled);
      });
    };
    Values<2> sums{};
    for_values([&](int, const auto& normed, const auto& scaled) {
#pragma unroll
      for (int k = 0; k < kRowPack; ++k) {
        sums.at[0] += scaled.at[k];
        sums.at[1] += scaled.at[k] * normed.at[k];
      }
    });
    sums = team_sum(sums);
    const float sum_mean = norm.in.centered ? sums.at[0] / count : 0;
    const float product_mean = sums.at[1] / count;
    for_values([&](int i, const auto& normed, auto scaled) {
#pragma unroll
      for (int k = 0; k < kRowPack; ++k) {
        scaled.at[k] =
            rstd * (scaled.at[k] - sum_mean - normed.at[k] * product_mean);
      }
      store<kRowPack>(gradient_x + i, scaled);
    });
  });
}

/// A block per row, as often as there are more rows than blocks: for rows that
/// norm_row_kernel() does not take.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMostThreads)
    norm_kernel(const NormForward __grid_constant__ norm) {
  const int64_t features = norm.in.features;
  const auto count = static_cast<float>(features);
  TeamSums block_sum(blockDim.x);
  for (int64_t row = blockIdx.x; row < norm.in.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(norm.in.x) + row * features;
    T* y = static_cast<T*>(norm.y) + row * features;
    const int64_t first = first_parameter(norm.in, row);
    float mean = 0;
    if (norm.in.centered) {
      Values<1> sum{};
      for_row<kWidth>(features, [&](int64_t i) {
        const auto values = load<kWidth>(x + i);
        for (int k = 0; k < kWidth; ++k) {
          sum.at[0] += values.at[k];
        }
      });
      mean = block_sum(sum).at[0] / count;
    }
    // In a pass of its own: the squares less those of the mean would cancel.
    Values<1> squares{};
    for_row<kWidth>(features, [&](int64_t i) {
      const auto values = load<kWidth>(x + i);
      for (int k = 0; k < kWidth; ++k) {
        const float centered = values.at[k] - mean;
        squares.at[0] += centered * centered;
      }
    });
    const float rstd =
        __fdiv_rn(1, __fsqrt_rn(block_sum(squares).at[0] / count + norm.eps));
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
  TeamSums block_sum(blockDim.x);
  for (int64_t row = blockIdx.x; row < norm.in.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(norm.in.x) + row * features;
    const T* gradient = static_cast<const T*>(norm.gradient) + row * features;
    T* gradient_x = static_cast<T*>(norm.gradient_x) + row * features;
    const int64_t first = first_parameter(norm.in, row);
    const float mean = norm.in.centered ? norm.mean[row] : 0;
    const float rstd = norm.rstd[row];
    // Calls use(i, normed x, gradient with respect to it).
    const auto for_values = [&](const auto& use) {
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
    Values<2> sums{};
    for_values([&](int64_t, const auto& normed, const auto& scaled) {
      for (int k = 0; k < kWidth; ++k) {
        sums.at[0] += scaled.at[k];
        sums.at[1] += scaled.at[k] * normed.at[k];
      }
    });
    sums = block_sum(sums);
    const float sum_mean = norm.in.centered ? sums.at[0] / count : 0;
    const float product_mean = sums.at[1] / count;
    for_values([&](int64_t i, const auto& normed, auto scaled) {
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
  Values<2> sums{}; // of the weight and of the bias
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
        sums.at[0] += local.at[k] * (values.at[k] - mean) * rstd;
        sums.at[1] += local.at[k];
      }
    });
  }
  sums = TeamSums(blockDim.x)(sums);
  const int64_t index = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0 && norm.gradient_weight != nullptr) {
    norm.gradient_weight[index] = sums.at[0];
  }
  if (threadIdx.x == 0 && norm.gradient_bias != nullptr) {
    norm.gradient_bias[index] = sums.at[1];
  }
}

/// What the threads of a block have added up of their columns.
__device__ float* sums_of_columns() {
  __shared__ float sums[kMostThreads * kRowPack];
  return sums;
}

/// A thread adds up kWidth columns of some rows of one part, which are one
/// group without neighbours that share a parameter; then the block adds up what
/// its threads have.
/// @param across threads side by side, a power of two up to a warp; others
///   of the block have other rows.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMostThreads) norm_backward_parameters_kernel(
    const NormBackward __grid_constant__ norm,
    unsigned across) {
  const int64_t features = norm.in.features;
  const unsigned columns = across * kWidth; // of the block
  const int64_t begin = int64_t{blockIdx.x} * columns;
  const int64_t column = begin + threadIdx.x % across * kWidth;
  const unsigned slice = threadIdx.x / across;
  const unsigned slices = blockDim.x / across;
  const T* x = static_cast<const T*>(norm.in.x) + column;
  const T* gradient = static_cast<const T*>(norm.gradient) + column;
  const int64_t per_part = (norm.in.rows + norm.parts - 1) / norm.parts;
  const int64_t first = per_part * int64_t{blockIdx.y};
  const int64_t end = column >= features                ? 0
                      : first + per_part < norm.in.rows ? first + per_part
                                                        : norm.in.rows;
  Values<kWidth> weight{};
  Values<kWidth> bias{};
#pragma unroll 2
  for (int64_t row = first + slice; row < end; row += slices) {
    const auto values = load<kWidth>(x + row * features);
    const auto local = load<kWidth>(gradient + row * features);
    const float mean = norm.in.centered ? norm.mean[row] : 0;
    const float rstd = norm.rstd[row];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      weight.at[k] += local.at[k] * (values.at[k] - mean) * rstd;
      bias.at[k] += local.at[k];
    }
  }
  const auto add_slices = [&](const Values<kWidth>& sums, float* parts) {
    float* shared = sums_of_columns();
    __syncthreads(); // the earlier ones have been read
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      shared[threadIdx.x * kWidth + k] = sums.at[k];
    }
    __syncthreads();
    const int64_t i = begin + threadIdx.x;
    if (threadIdx.x < columns && i < features) {
      float sum = 0;
      for (unsigned other = 0; other < slices; ++other) {
        sum += shared[other * columns + threadIdx.x];
      }
      parts[int64_t{blockIdx.y} * features + i] = sum;
    }
  };
  if (norm.gradient_weight != nullptr) {
    add_slices(weight, norm.gradient_weight);
  }
  if (norm.gradient_bias != nullptr) {
    add_slices(bias, norm.gradient_bias);
  }
}

/// Whether arrays of `features` columns can be read in packs of `width`, all
/// rows of them.
template <typename... Pointers>
bool fits_packs(int width, int64_t features, const Pointers*... arrays) {
  // As packs of 16 bytes, for all.
  return features % width == 0 &&
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

/// Calls call() with `packs`, 1 to kMostPacks, as a constant.
template <typename Call>
cudaError_t with_packs(int64_t packs, const Call& call) {
  static_assert(kMostPacks == 4);
  switch (packs) {
    case 1:
      return call(std::integral_constant<int, 1>());
    case 2:
      return call(std::integral_constant<int, 2>());
    case 3:
      return call(std::integral_constant<int, 3>());
    default:
      return call(std::integral_constant<int, 4>());
  }
}

/// A block for `per_block` rows each.
dim3 blocks_of(const NormRows& in, int64_t per_block = 1) {
  return dim3(static_cast<unsigned>(std::clamp<int64_t>(
      (in.rows + per_block - 1) / per_block, 1, kMostBlocks)));
}

/// Whether the threads of a team can keep a row of these arrays in registers.
/// Not where elements share a parameter: finding it takes too many registers.
template <typename... Pointers>
bool fits_registers(const NormRows& in, const Pointers*... arrays) {
  const int64_t features = in.features;
  return in.spatial == 1 && features > 0 &&
         features <= kMostThreads * kMostPacks * kRowPack &&
         fits_packs(kRowPack, features, arrays...);
}

/// The threads of a row in registers: few, so that each has several loads on
/// their way, but a pack each up to a warp.
int64_t team_of(int64_t features) {
  const int64_t packs = features / kRowPack;
  const int64_t least = std::min<int64_t>(packs, kWarp);
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(
      std::max(least, (packs + kMostPacks - 1) / kMostPacks))));
}

/// Launches row_kernel(packs of a thread), for rows that fit registers.
template <typename Norm, typename KernelOf>
cudaError_t launch_rows(
    const Norm& norm,
    cudaStream_t stream,
    const KernelOf& row_kernel) {
  const int64_t team = team_of(norm.in.features);
  const int64_t threads = team > kWarp ? team : kTeamsThreads;
  const int64_t step = team * kRowPack;
  return with_packs(
      (norm.in.features + step - 1) / step, [&]<typename Packs>(Packs) {
        return launch(
            row_kernel(Packs()),
            blocks_of(norm.in, threads / team),
            static_cast<int>(threads),
            stream,
            norm,
            static_cast<unsigned>(team));
      });
}

template <typename T>
cudaError_t launch_backward_x(const NormBackward& norm, cudaStream_t stream) {
  const NormRows& in = norm.in;
  if (fits_registers(in, in.x, in.weight, norm.gradient, norm.gradient_x)) {
    return launch_rows(norm, stream, []<typename Packs>(Packs) {
      return &norm_backward_row_kernel<T, Packs::value>;
    });
  }
  const bool packed = fits_packs(
      kPack, in.features, in.x, in.weight, norm.gradient, norm.gradient_x);
  return launch(
      packed ? &norm_backward_x_kernel<T, kPack>
             : &norm_backward_x_kernel<T, 1>,
      blocks_of(in),
      threads_for(packed ? in.features / kPack : in.features, kMostThreads),
      stream,
      norm);
}

/// Whether a block adds up one parameter, instead of a thread.
bool has_channels(const NormRows& in) {
  return in.groups > 1 || in.spatial > 1;
}

template <typename T>
cudaError_t launch_backward_parameters(
    const NormBackward& norm,
    cudaStream_t stream) {
  const int64_t features = norm.in.features;
  const auto parts = static_cast<unsigned>(norm.parts);
  if (has_channels(norm.in)) {
    const int64_t spatial = norm.in.spatial;
    const bool packed = fits_packs(kPack, spatial, norm.in.x, norm.gradient);
    const dim3 grid(
        static_cast<unsigned>(norm.in.groups * (features / spatial)), parts);
    return launch(
        packed ? &norm_backward_channels_kernel<T, kPack>
               : &norm_backward_channels_kernel<T, 1>,
        grid,
        threads_for(packed ? spatial / kPack : spatial, kMostThreads),
        stream,
        norm);
  }
  const auto launch_width = [&]<typename Width>(Width) {
    const int64_t work = features / Width::value;
    const uint64_t across = std::bit_ceil(
        static_cast<uint64_t>(std::clamp<int64_t>(work, 1, kWarp)));
    const auto per_block = static_cast<int64_t>(across);
    const dim3 grid(
        static_cast<unsigned>((work + per_block - 1) / per_block), parts);
    return launch(
        &norm_backward_parameters_kernel<T, Width::value>,
        grid,
        kMostThreads,
        stream,
        norm,
        static_cast<unsigned>(across));
  };
  const auto fits = [&](int width) {
    return fits_packs(width, features, norm.in.x, norm.gradient);
  };
  return fits(kRowPack) ? launch_width(std::integral_constant<int, kRowPack>())
         : fits(kPack)  ? launch_width(std::integral_constant<int, kPack>())
                        : launch_width(std::integral_constant<int, 1>());
}

} // namespace

int64_t norm_backward_parts(const NormRows& in) {
  const int64_t samples = in.rows / in.groups;
  constexpr int64_t kLeastSamples = 32; // of a part
  int64_t parts = samples / kLeastSamples;
  if (!has_channels(in)) {
    // 4 blocks on each of 132 multiprocessors; more parts take longer to add.
    constexpr int64_t kBlocks = 512;
    constexpr int64_t kColumns = kWarp * kRowPack; // of a block
    parts =
        std::min(parts, kBlocks * kColumns / std::max(in.features, kColumns));
  }
  return std::clamp<int64_t>(parts, 1, 256);
}

cudaError_t launch_norm(const NormForward& norm, cudaStream_t stream) {
  const NormRows& in = norm.in;
  return with_type(in.type, [&]<typename T>(T) {
    if (fits_registers(in, in.x, in.weight, norm.bias, norm.y)) {
      return launch_rows(norm, stream, []<typename Packs>(Packs) {
        return &norm_row_kernel<T, Packs::value>;
      });
    }
    const bool packed =
        fits_packs(kPack, in.features, in.x, in.weight, norm.bias, norm.y);
    return launch(
        packed ? &norm_kernel<T, kPack> : &norm_kernel<T, 1>,
        blocks_of(in),
        threads_for(packed ? in.features / kPack : in.features, kMostThreads),
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
      error = launch_backward_x<T>(norm, stream);
    }
    if (error == cudaSuccess &&
        (norm.gradient_weight != nullptr || norm.gradient_bias != nullptr)) {
      error = launch_backward_parameters<T>(norm, stream);
    }
    return error;
  });
}

} // namespace tessera::runtime
