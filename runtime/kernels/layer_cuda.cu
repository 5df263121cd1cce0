// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/layer_cuda.h"

#include "tessera/runtime/kernels/element_pack.cuh"
#include "tessera/runtime/kernels/launch.cuh"

#include <algorithm>
#include <cmath>

namespace tessera::runtime {

namespace {

constexpr int kLayerThreads = 256;
constexpr int64_t kMostLayerBlocks = int64_t{1} << 20;

struct GateValue {
  float value;
  float slope;
};

/// x sigmoid(u), with the derivative of u.
__device__ inline GateValue by_sigmoid(float x, float u, float u_slope) {
  const float e = expf(-u);
  const float s = __fdiv_rn(1, 1 + e);
  const float rest = s > 0 ? e * s : 1; // 1 - s would cancel
  return {x * s, s * (1 + x * rest * u_slope)};
}

template <int kNumber>
__device__ GateValue gate_value(float x) {
  constexpr auto kFunction = static_cast<GateFunction>(kNumber);
  if constexpr (kFunction == GateFunction::kSilu) {
    return by_sigmoid(x, x, 1);
  } else if constexpr (kFunction == GateFunction::kTanhGelu) {
    // (1 + tanh(u / 2)) / 2 is the sigmoid of u.
    constexpr float kScale = 1.5957691216F; // 2 sqrt(2 / pi)
    constexpr float kCubic = 0.044715F;
    const float squared = x * x;
    return by_sigmoid(
        x,
        kScale * x * (1 + kCubic * squared),
        kScale * (1 + 3 * kCubic * squared));
  } else {
    constexpr float kRootHalf = 0.70710678F;
    constexpr float kDensity = 0.39894228F; // 1 / sqrt(2 pi)
    const float below = 0.5F * (1 + erff(x * kRootHalf));
    return {x * below, below + x * kDensity * expf(-0.5F * x * x)};
  }
}

/// A thread has one pack at a time.
/// @tparam kFunction a GateFunction.
template <int kFunction, typename T, int kWidth>
__global__ void __launch_bounds__(kLayerThreads)
    gated_kernel(const GatedRows __grid_constant__ rows) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x * kWidth;
  for (int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kWidth;
       i < rows.numel;
       i += step) {
    const auto gate = load_pack<kWidth>(static_cast<const T*>(rows.gate) + i);
    auto up = load_pack<kWidth>(static_cast<const T*>(rows.up) + i);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      up.values[k] = narrow<T>(
          gate_value<kFunction>(widen(gate.values[k])).value *
          widen(up.values[k]));
    }
    store_pack(static_cast<T*>(rows.y) + i, up);
  }
}

/// @tparam kFunction a GateFunction.
template <int kFunction, typename T, int kWidth>
__global__ void __launch_bounds__(kLayerThreads)
    gated_backward_kernel(const GatedRows __grid_constant__ rows) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x * kWidth;
  for (int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kWidth;
       i < rows.numel;
       i += step) {
    auto gate = load_pack<kWidth>(static_cast<const T*>(rows.gate) + i);
    auto up = load_pack<kWidth>(static_cast<const T*>(rows.up) + i);
    const auto gradient =
        load_pack<kWidth>(static_cast<const T*>(rows.gradient) + i);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const GateValue gated = gate_value<kFunction>(widen(gate.values[k]));
      const float from = widen(gradient.values[k]);
      gate.values[k] = narrow<T>(from * widen(up.values[k]) * gated.slope);
      up.values[k] = narrow<T>(from * gated.value);
    }
    store_pack(static_cast<T*>(rows.gradient_gate) + i, gate);
    store_pack(static_cast<T*>(rows.gradient_up) + i, up);
  }
}

/// A block rotates the heads of one token; a thread kWidth pairs of one head at
/// a time, or copies kWidth features that are not rotated.
template <typename T, int kWidth, bool kAdjacent>
__global__ void __launch_bounds__(kLayerThreads)
    rotary_kernel(const RotaryHeads __grid_constant__ all) {
  const int half = static_cast<int>(all.half);
  const int rotated = half / kWidth;
  const int units =
      rotated + (static_cast<int>(all.features) - 2 * half) / kWidth;
  const float sign = all.inverse ? -1 : 1;
  for (int64_t index = blockIdx.x; index < all.batch * all.tokens;
       index += gridDim.x) {
    const int64_t batch = index / all.tokens;
    const int64_t token = index - batch * all.tokens;
    const int64_t table = batch * all.table_stride + token * all.half;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const HeadRows& rows = all.rows[which];
      const T* from = static_cast<const T*>(rows.x) +
                      batch * rows.x_strides[0] + token * rows.x_strides[2];
      T* to = static_cast<T*>(rows.y) + batch * rows.y_strides[0] +
              token * rows.y_strides[2];
      const int work = static_cast<int>(rows.heads) * units;
      for (int i = static_cast<int>(threadIdx.x); i < work;
           i += static_cast<int>(blockDim.x)) {
        const int head = i / units;
        const int unit = i - head * units;
        const T* x = from + head * rows.x_strides[1];
        T* y = to + head * rows.y_strides[1];
        if (unit >= rotated) {
          const int first = 2 * half + (unit - rotated) * kWidth;
          store_pack(y + first, load_pack<kWidth>(x + first));
          continue;
        }
        const int pair = unit * kWidth;
        const auto cosines = load_pack<kWidth>(
            static_cast<const T*>(all.cosines) + table + pair);
        const auto sines =
            load_pack<kWidth>(static_cast<const T*>(all.sines) + table + pair);
        const int first = kAdjacent ? 2 * pair : pair;
        const int second = kAdjacent ? first + kWidth : half + pair;
        Pack<T, kWidth> packs[2] = {
            load_pack<kWidth>(x + first), load_pack<kWidth>(x + second)};
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          // Number of a pair's elements in both packs.
          const int a = kAdjacent ? 2 * k : k;
          const int b = kAdjacent ? 2 * k + 1 : kWidth + k;
          T& of_a = packs[a / kWidth].values[a % kWidth];
          T& of_b = packs[b / kWidth].values[b % kWidth];
          const float cosine = widen(cosines.values[k]);
          const float sine = sign * widen(sines.values[k]);
          const float local_a = widen(of_a);
          const float local_b = widen(of_b);
          of_a = narrow<T>(local_a * cosine - local_b * sine);
          of_b = narrow<T>(local_b * cosine + local_a * sine);
        }
        store_pack(y + first, packs[0]);
        store_pack(y + second, packs[1]);
      }
    }
  }
}

dim3 layer_blocks(int64_t blocks) {
  return dim3(
      static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, kMostLayerBlocks)));
}

/// Calls call(element) for the type.
template <typename Call>
cudaError_t with_element(ElementType type, const Call& call) {
  switch (type) {
    case ElementType::kFloat32:
      return call(float{});
    case ElementType::kFloat16:
      return call(__half{});
    case ElementType::kBFloat16:
      return call(__nv_bfloat16{});
    case ElementType::kFloat64:
      break;
  }
  return cudaErrorInvalidValue;
}

/// The name of a kernel has a number where an enumerator would be a cast.
constexpr int number_of(GateFunction function) {
  return static_cast<int>(function);
}

/// Calls call.operator()<number of the function>().
template <typename Call>
cudaError_t with_gate(GateFunction function, const Call& call) {
  switch (function) {
    case GateFunction::kSilu:
      return call.template operator()<number_of(GateFunction::kSilu)>();
    case GateFunction::kGelu:
      return call.template operator()<number_of(GateFunction::kGelu)>();
    case GateFunction::kTanhGelu:
      return call.template operator()<number_of(GateFunction::kTanhGelu)>();
  }
  return cudaErrorInvalidValue;
}

/// In packs of 16 bytes where all arrays are aligned and have no rest.
template <typename... Pointers>
bool fits_layer_packs(int64_t numel, int width, const Pointers*... arrays) {
  return numel % width == 0 && (is_aligned(arrays, 16) && ...);
}

template <typename T>
constexpr int kLayerPack = 16 / sizeof(T);

/// Launches kernel_of.operator()<number of the function, type, width>(), in
/// packs if the arrays can be read so.
template <typename KernelOf, typename... Pointers>
cudaError_t launch_gates(
    const GatedRows& rows,
    cudaStream_t stream,
    const KernelOf& kernel_of,
    const Pointers*... arrays) {
  return with_element(rows.type, [&]<typename T>(T) {
    return with_gate(rows.function, [&]<int kFunction>() {
      constexpr int kPack = kLayerPack<T>;
      const bool packed = fits_layer_packs(rows.numel, kPack, arrays...);
      const int64_t per_block = int64_t{kLayerThreads} * (packed ? kPack : 1);
      return launch(
          packed ? kernel_of.template operator()<kFunction, T, kPack>()
                 : kernel_of.template operator()<kFunction, T, 1>(),
          layer_blocks((rows.numel + per_block - 1) / per_block),
          kLayerThreads,
          stream,
          rows);
    });
  });
}

} // namespace

cudaError_t launch_gated(const GatedRows& rows, cudaStream_t stream) {
  return launch_gates(
      rows,
      stream,
      []<int kFunction, typename T, int kWidth>() {
        return &gated_kernel<kFunction, T, kWidth>;
      },
      rows.gate,
      rows.up,
      rows.y);
}

cudaError_t launch_gated_backward(const GatedRows& rows, cudaStream_t stream) {
  return launch_gates(
      rows,
      stream,
      []<int kFunction, typename T, int kWidth>() {
        return &gated_backward_kernel<kFunction, T, kWidth>;
      },
      rows.gate,
      rows.up,
      rows.gradient,
      rows.gradient_gate,
      rows.gradient_up);
}

cudaError_t launch_rotary(const RotaryHeads& all, cudaStream_t stream) {
  return with_element(all.type, [&]<typename T>(T) {
    constexpr int kPack = kLayerPack<T>;
    bool packed = fits_layer_packs(all.half, kPack, all.cosines, all.sines) &&
                  all.features % kPack == 0 && all.table_stride % kPack == 0;
    int64_t most = 0;
    for (const HeadRows& rows : all.rows) {
      packed = packed && fits_layer_packs(0, kPack, rows.x, rows.y);
      for (int k = 0; k < 3; ++k) {
        packed = packed && rows.x_strides[k] % kPack == 0 &&
                 rows.y_strides[k] % kPack == 0;
      }
      most = std::max(most, rows.heads);
    }
    const int width = packed ? kPack : 1;
    const int64_t units =
        all.half / width + (all.features - 2 * all.half) / width;
    const auto kernel = all.adjacent ? (packed ? &rotary_kernel<T, kPack, true>
                                               : &rotary_kernel<T, 1, true>)
                                     : (packed ? &rotary_kernel<T, kPack, false>
                                               : &rotary_kernel<T, 1, false>);
    return launch(
        kernel,
        layer_blocks(all.batch * all.tokens),
        threads_for(most * units, kLayerThreads),
        stream,
        all);
  });
}

} // namespace tessera::runtime
