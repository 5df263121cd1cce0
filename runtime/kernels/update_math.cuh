// SPDX-License-Identifier: Apache-2.0
#pragma once
// Arithmetic of the optimizer kernels on CUDA, rounding for rounding that of
// the CPU kernels: nvcc may fuse a product and a sum written with operators; it
// may not touch these.

#include "tessera/runtime/kernels/low_precision.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace tessera {

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

/// 1, -1, or the zero itself; not a number where `a` is not one.
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

/// kWidth neighbouring elements, moved by one instruction.
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

/// Gradients as T, whatever they are kept in.
template <typename T, int kWidth>
__device__ Pack<T, kWidth> load_grad(
    const void* grad,
    LowPrecision format,
    int64_t i) {
  if (format == LowPrecision::kNone) {
    return load_pack<T, kWidth>(static_cast<const T*>(grad), i);
  }
  const auto bits =
      load_pack<uint16_t, kWidth>(static_cast<const uint16_t*>(grad), i);
  Pack<T, kWidth> result;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    result.values[k] = static_cast<T>(widened(bits.values[k], format));
  }
  return result;
}

/// Stores the values rounded; nothing for kNone.
template <typename T, int kWidth>
__device__ void store_rounded(
    uint16_t* array,
    LowPrecision format,
    int64_t i,
    const Pack<T, kWidth>& values) {
  if (format == LowPrecision::kNone) {
    return;
  }
  Pack<uint16_t, kWidth> bits;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    bits.values[k] = rounded(static_cast<float>(values.values[k]), format);
  }
  store_pack(array, i, bits);
}

} // namespace

} // namespace tessera
