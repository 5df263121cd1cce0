// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stands for CUDA's header of this name where .cu files are compiled as C++.

#include <c10/util/BFloat16.h>

#include <cmath>
#include <cstdint>

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 x) {
  return c10::detail::f32_from_bits(x.bits);
}
/// To nearest, ties to even; any NaN becomes the one that CUDA makes of it.
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {
      std::isnan(x) ? uint16_t{0x7fff} : c10::detail::round_to_nearest_even(x)};
}
inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t bits) {
  return {bits};
}
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 x) {
  return x.bits;
}
