// SPDX-License-Identifier: Apache-2.0
#pragma once
// Arithmetic of the optimizer kernels on CUDA, with the same rounding as the
// CPU kernels: nvcc may fuse a product and a sum written with operators, but
// not these intrinsics.

#include "tessera/runtime/kernels/element_pack.cuh"
#include "tessera/runtime/kernels/flat_shard.h"

#include <cstdint>

namespace tessera::runtime {

namespace {

/// One number, as the rules of update_rules.h take vectors.
template <typename T>
struct CudaNumber {
  T value;

  CudaNumber() = default;
  __device__ CudaNumber(T v) : value(v) {}

  friend __device__ CudaNumber operator+(CudaNumber a, CudaNumber b) {
    if constexpr (sizeof(T) == sizeof(float)) {
      return __fadd_rn(a.value, b.value);
    } else {
      return __dadd_rn(a.value, b.value);
    }
  }
  friend __device__ CudaNumber operator-(CudaNumber a, CudaNumber b) {
    return a + CudaNumber(-b.value);
  }
  friend __device__ CudaNumber operator*(CudaNumber a, CudaNumber b) {
    if constexpr (sizeof(T) == sizeof(float)) {
      return __fmul_rn(a.value, b.value);
    } else {
      return __dmul_rn(a.value, b.value);
    }
  }
  friend __device__ CudaNumber operator/(CudaNumber a, CudaNumber b) {
    if constexpr (sizeof(T) == sizeof(float)) {
      return __fdiv_rn(a.value, b.value);
    } else {
      return __ddiv_rn(a.value, b.value);
    }
  }
  friend __device__ CudaNumber fma(CudaNumber a, CudaNumber b, CudaNumber c) {
    if constexpr (sizeof(T) == sizeof(float)) {
      return __fmaf_rn(a.value, b.value, c.value);
    } else {
      return __fma_rn(a.value, b.value, c.value);
    }
  }
  friend __device__ CudaNumber sqrt(CudaNumber a) {
    if constexpr (sizeof(T) == sizeof(float)) {
      return __fsqrt_rn(a.value);
    } else {
      return __dsqrt_rn(a.value);
    }
  }
  /// 1, -1, or the zero itself; NaN if `a` is NaN.
  friend __device__ CudaNumber sign(CudaNumber a) {
    return a.value > 0 ? T{1} : a.value < 0 ? T{-1} : a.value;
  }
};

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
template <typename T, typename Rule>
__device__ T grad_scale_of(const UpdateShard<T, Rule>& s) {
  return s.grad_factor == nullptr
             ? s.rule.grad_scale
             : static_cast<T>(__dmul_rn(
                   static_cast<double>(s.rule.grad_scale), *s.grad_factor));
}

/// Values as T, whatever their storage format.
template <typename T, int kWidth>
__device__ Pack<T, kWidth> load_as(
    const void* array,
    LowPrecision format,
    int64_t i) {
  if (format == LowPrecision::kNone) {
    return load_pack<kWidth>(static_cast<const T*>(array) + i);
  }
  const auto bits = load_pack<kWidth>(static_cast<const uint16_t*>(array) + i);
  Pack<T, kWidth> result;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    result.values[k] = static_cast<T>(widened(bits.values[k], format));
  }
  return result;
}

/// Stores the values in the format; kNone means T.
/// @return the values as load_as() will read them.
template <typename T, int kWidth>
__device__ Pack<T, kWidth> store_as(
    void* array,
    LowPrecision format,
    const RoundingKey& key,
    int number,
    int64_t i,
    const Pack<T, kWidth>& values) {
  if (format == LowPrecision::kNone) {
    store_pack(static_cast<T*>(array) + i, values);
    return values;
  }
  const uint32_t key1 = second_key(key, number);
  Pack<uint16_t, kWidth> bits;
  Pack<T, kWidth> stored;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const auto value = static_cast<float>(values.values[k]);
    if (key.enabled && format == LowPrecision::kBFloat16) {
      const auto index = static_cast<uint32_t>(key.first + i + k);
      const uint32_t noise = stochastic_noise(key.key0, key1, index);
      bits.values[k] =
          isnan(value)
              ? 0x7fc0
              : static_cast<uint16_t>((__float_as_uint(value) + noise) >> 16);
    } else {
      bits.values[k] = rounded(value, format);
    }
    stored.values[k] = static_cast<T>(widened(bits.values[k], format));
  }
  store_pack(static_cast<uint16_t*>(array) + i, bits);
  return stored;
}

/// The arrays of a shard as packs of T.
template <int kWidth, typename Shard>
struct ShardPacks {
  using T = typename Shard::Master;
  using Values = Pack<T, kWidth>;

  const Shard& s;
  int64_t i;

  __device__ Values master() const {
    return load_pack<kWidth>(s.master + i);
  }
  __device__ Values grad() const {
    return load_as<T, kWidth>(s.grad, s.grad_format, i);
  }
  __device__ Values state(int k) const {
    return load_as<T, kWidth>(s.states[k], s.state_format, i);
  }
  /// @return the values as state() will read them.
  __device__ Values store_state(int k, const Values& values) const {
    return store_as(s.states[k], s.state_format, s.rounding, 1 + k, i, values);
  }
  /// Stores the master and its rounded copy.
  __device__ void store_master(const Values& values) const {
    store_pack(s.master + i, values);
    if (s.low_precision_format != LowPrecision::kNone) {
      store_as(
          s.low_precision, s.low_precision_format, s.rounding, 0, i, values);
    }
  }
};

} // namespace

} // namespace tessera::runtime
