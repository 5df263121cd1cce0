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
  const auto exponent =
      std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRounding);
  const int32_t first = exponent >> 1;
  const float scale = std::bit_cast<float>((first + 127) << 23) * p *
                      std::bit_cast<float>((exponent - first + 127) << 23);
  const float positive = x < kSmallest ? 0 : scale;
  return x > kLargest ? std::numeric_limits<float>::infinity() : positive;
}

/// The distribution function of the normal distribution, within some units in
/// the last place also far below zero: by erfc(z) = t exp(-z^2 + polynomial of
/// t) with t = 1 / (1 + z / 2) (Numerical Recipes in C, section 6.2).
TESSERA_INLINE float normal_distribution(float x) {
  constexpr float kRootHalf = 0.70710678F;
  const float z = (x < 0 ? -x : x) * kRootHalf;
  const float t = 1 / (1 + 0.5F * z);
  float p = 0.17087277F;
  p = p * t - 0.82215223F;
  p = p * t + 1.48851587F;
  p = p * t - 1.13520398F;
  p = p * t + 0.27886807F;
  p = p * t - 0.18628806F;
  p = p * t + 0.09678418F;
  p = p * t + 0.37409196F;
  p = p * t + 1.00002368F;
  p = p * t - 1.26551223F;
  const float tail = 0.5F * t * exponential(p - z * z);
  return x < 0 ? tail : 1 - tail;
}

} // namespace tessera::runtime::row_math
