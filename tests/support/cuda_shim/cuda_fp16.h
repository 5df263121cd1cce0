// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stands for CUDA's header of this name where .cu files are compiled as C++.

#include <c10/util/Half.h>

#include <cmath>
#include <cstdint>

struct __half {
  uint16_t bits;
};

inline float __half2float(__half x) {
  return c10::detail::fp16_ieee_to_fp32_value(x.bits);
}
/// To nearest, ties to even; any NaN becomes the one that CUDA makes of it.
inline __half __float2half_rn(float x) {
  return {
      std::isnan(x) ? uint16_t{0x7fff}
                    : c10::detail::fp16_ieee_from_fp32_value(x)};
}
inline __half __ushort_as_half(uint16_t bits) {
  return {bits};
}
inline uint16_t __half_as_ushort(__half x) {
  return x.bits;
}
