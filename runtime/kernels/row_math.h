// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions of one float32 number that a compiler can turn into vector code:
// without branches and calls. Internal; for loops in TESSERA_CLONES.

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#if defined(__GNUC__)
#define TESSERA_INLINE inline __attribute__((always_inline))
#else
#define TESSERA_INLINE inline
#endif

namespace tessera::runtime::row_math {

TESSERA_INLINE float widened(float x) {
  return x;
}
TESSERA_INLINE float widened(c10::BFloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.x) << 16);
}
TESSERA_INLINE float widened(c10::Half x) {
  return static_cast<float>(x);
}

template <typename T>
struct Narrow;
template <>
struct Narrow<float> {
  TESSERA_INLINE static float of(float x) {
    return x;
  }
};
template <>
struct Narrow<c10::BFloat16> {
  TESSERA_INLINE static c10::BFloat16 of(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    // NaN: its bits might round to those of infinity.
    const uint32_t local = (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded;
    return {static_cast<uint16_t>(local), c10::BFloat16::from_bits()};
  }
};
template <>
struct Narrow<c10::Half> {
  TESSERA_INLINE static c10::Half of(float x) {
    return {x};
  }
};

/// e^x within two units in the last place; 0 where it is below 2^-126.
TESSERA_INLINE float exponential(float x) {
  constexpr float kLargest = 88.72284F; // above: infinity
  constexpr float kSmallest = -87.33655F;
  const float inside = x < kSmallest ? kSmallest : x > kLargest ? kLargest : x;
  // Rounded to an integer by adding 1.5 * 2^23.
  constexpr float kRounding = 12582912.0F;
  const float shifted = inside * 1.44269504F + kRounding;
  const float n = shifted - kRounding;
  // ln 2 in two parts, of which the first times n is exact.
  const float r = (inside - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1;
  // 2^n in two factors: n may be 128.
  const auto exponent = std::bit_cast<int32_t>(shifted) -
                        std::bit_cast<int32_t>(kRounding);
  const int32_t first = exponent >> 1;
  const float scale =
      std::bit_cast<float>((first + 127) << 23) * p *
      std::bit_cast<float>((exponent - first + 127) << 23);
  const float positive = x < kSmallest ? 0 : scale;
  return x > kLargest ? std::numeric_limits<float>::infinity() : positive;
}

TESSERA_INLINE float sigmoid(float x) {
  return 1 / (1 + exponential(-x));
}

/// The error function by a quotient of polynomials, within 5e-7.
TESSERA_INLINE float error_function(float x) {
  constexpr float kEnd = 4; // from there on it is 1 in float32
  const float inside = x < -kEnd ? -kEnd : x > kEnd ? kEnd : x;
  const float squared = inside * inside;
  float p = -2.72614225801306e-10F;
  p = p * squared + 2.77068142495902e-08F;
  p = p * squared - 2.10102402082508e-06F;
  p = p * squared - 5.69250639462346e-05F;
  p = p * squared - 7.34990630326855e-04F;
  p = p * squared - 2.95459980854025e-03F;
  p = p * squared - 1.60960333262415e-02F;
  float q = -1.45660718464996e-05F;
  q = q * squared - 2.13374055278905e-04F;
  q = q * squared - 1.68282697438203e-03F;
  q = q * squared - 7.37332916720468e-03F;
  q = q * squared - 1.42647390514189e-02F;
  const float value = inside * p / q;
  return x < -kEnd ? -1.0F : x > kEnd ? 1.0F : value;
}

} // namespace tessera::runtime::row_math
