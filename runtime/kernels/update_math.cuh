// SPDX-License-Identifier: Apache-2.0
#pragma once
// Arithmetic of the optimizer kernels on CUDA, with the same rounding as the
// CPU kernels: nvcc may fuse a product and a sum written with operators, but
// not these intrinsics.

#include "tessera/runtime/kernels/flat_shard.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace tessera::runtime {

namespace {

__device__ float add(float a, float b) {
  return __fadd_rn(a, b);
}
__device__ float mul(float a, float b) {
  return __fmul_rn(a, b);
}
__device__ float div(float a, float b) {
  return __fdiv_rn(a, b);
}
__device__ float fused(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
__device__ float root(float a) {
  return __fsqrt_rn(a);
}
__device__ double add(double a, double b) {
  return __dadd_rn(a, b);
}
__device__ double mul(double a, double b) {
  return __dmul_rn(a, b);
}
__device__ double div(double a, double b) {
  return __ddiv_rn(a, b);
}
__device__ double fused(double a, double b, double c) {
  return __fma_rn(a, b, c);
}
__device__ double root(double a) {
  return __dsqrt_rn(a);
}

/// 1, -1, or the zero itself; NaN if `a` is NaN.
template <typename T>
__device__ T sign(T a) {
  return a > 0 ? T{1} : a < 0 ? T{-1} : a;
}

__device__ inline float widened(uint16_t bits, LowPrecision format) {
  return format == LowPrecision::kBFloat16
             ? __bfloat162float(__ushort_as_bfloat16(bits))
             : __half2float(__ushort_as_half(bits));
}

__device__ inline uint16_t rounded(float value, LowPrecision format) {
  return format == LowPrecision::kBFloat16
             ? __bfloat16_as_ushort(__float2bfloat16_rn(value))
             : __half_as_ushort(__float2half_rn(value));
}

/// As fold_grad_factor().
template <typename T, typename Scalars>
__device__ T grad_scale_of(const UpdateShard<T, Scalars>& s) {
  return s.grad_factor == nullptr
             ? s.scalars.grad_scale
             : static_cast<T>(mul(
                   static_cast<double>(s.scalars.grad_scale), *s.grad_factor));
}

/// kWidth neighboring elements, moved by one instruction.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T values[kWidth];
};

template <typename T, int kWidth>
__device__ Pack<T, kWidth> load_pack(const T* array, int64_t i) {
  return *reinterpret_cast<const Pack<T, kWidth>*>(array + i);
}

template <typename T, int kWidth>
__device__ void store_pack(T* array, int64_t i, const Pack<T, kWidth>& pack) {
  *reinterpret_cast<Pack<T, kWidth>*>(array + i) = pack;
}

/// Values as T, whatever their storage format.
template <typename T, int kWidth>
__device__ Pack<T, kWidth> load_as(
    const void* array,
    LowPrecision format,
    int64_t i) {
  if (format == LowPrecision::kNone) {
    return load_pack<T, kWidth>(static_cast<const T*>(array), i);
  }
  const auto bits =
      load_pack<uint16_t, kWidth>(static_cast<const uint16_t*>(array), i);
  Pack<T, kWidth> result;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    result.values[k] = static_cast<T>(widened(bits.values[k], format));
  }
  return result;
}

/// As stochastic_noise() in stochastic_rounding.h.
__device__ inline uint32_t noise(uint32_t key0, uint32_t key1, uint32_t index) {
  uint32_t x = index ^ key0;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = ((x ^ (x >> 15)) + key1) * 0x846ca68bu;
  return x >> 16;
}

/// Stores the values in the format; kNone means T.
template <typename T, int kWidth>
__device__ void store_as(
    void* array,
    LowPrecision format,
    const RoundingKey& key,
    RoundedArray which,
    int64_t i,
    const Pack<T, kWidth>& values) {
  if (format == LowPrecision::kNone) {
    store_pack(static_cast<T*>(array), i, values);
    return;
  }
  const uint32_t key1 = key.key1 + static_cast<uint32_t>(which) * 0x9e3779b9u;
  Pack<uint16_t, kWidth> bits;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const auto value = static_cast<float>(values.values[k]);
    if (key.enabled && format == LowPrecision::kBFloat16) {
      const auto index = static_cast<uint32_t>(key.first + i + k);
      bits.values[k] =
          isnan(value)
              ? 0x7fc0
              : static_cast<uint16_t>(
                    (__float_as_uint(value) + noise(key.key0, key1, index)) >>
                    16);
    } else {
      bits.values[k] = rounded(value, format);
    }
  }
  store_pack(static_cast<uint16_t*>(array), i, bits);
}

/// The arrays of a shard as packs of T.
template <int kWidth, typename Shard>
struct ShardPacks {
  using T = typename Shard::Master;
  using Values = Pack<T, kWidth>;

  const Shard& s;
  int64_t i;

  __device__ Values master() const {
    return load_pack<T, kWidth>(s.master, i);
  }
  __device__ Values grad() const {
    return load_as<T, kWidth>(s.grad, s.grad_format, i);
  }
  __device__ Values moment() const {
    return load_as<T, kWidth>(s.moment, s.moment_format, i);
  }
  __device__ Values moment_sq() const {
    return load_as<T, kWidth>(s.moment_sq, s.moment_format, i);
  }
  __device__ Values moment_diff() const {
    return load_as<T, kWidth>(s.moment_diff, s.moment_format, i);
  }
  __device__ Values previous_grad() const {
    return load_as<T, kWidth>(s.previous_grad, s.moment_format, i);
  }
  __device__ void store_moment(const Values& values) const {
    store_state(s.moment, RoundedArray::kMoment, values);
  }
  __device__ void store_moment_sq(const Values& values) const {
    store_state(s.moment_sq, RoundedArray::kMomentSq, values);
  }
  __device__ void store_moment_diff(const Values& values) const {
    store_state(s.moment_diff, RoundedArray::kMomentDiff, values);
  }
  __device__ void store_previous_grad(const Values& values) const {
    store_state(s.previous_grad, RoundedArray::kPreviousGrad, values);
  }
  __device__ void store_state(
      void* array,
      RoundedArray which,
      const Values& values) const {
    store_as(array, s.moment_format, s.rounding, which, i, values);
  }
  /// Stores the master and its rounded copy.
  __device__ void store_master(const Values& values) const {
    store_pack(s.master, i, values);
    if (s.low_precision_format != LowPrecision::kNone) {
      store_as(
          s.low_precision,
          s.low_precision_format,
          s.rounding,
          RoundedArray::kLowPrecision,
          i,
          values);
    }
  }
};

} // namespace

} // namespace tessera::runtime
