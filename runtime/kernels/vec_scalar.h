// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ScalarVec` is a "vector" of one element in plain C++, for any processor and
// for float64. std::fma rounds once, with or without the instruction.

#include "tessera/runtime/kernels/stochastic_rounding.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace tessera::runtime {

namespace {

template <typename T>
struct ScalarVec {
  using Scalar = T;
  static constexpr int64_t kWidth = 1;
  using Bits = uint32_t;
  T value;

  ScalarVec() = default;
  ScalarVec(T v) : value(v) {}

  static ScalarVec load(const T* p, int64_t = 1) {
    return {*p};
  }
  static ScalarVec load_bfloat16(const uint16_t* p, int64_t = 1) {
    return {static_cast<T>(c10::detail::f32_from_bits(*p))};
  }
  static ScalarVec load_float16(const uint16_t* p, int64_t = 1) {
    return {static_cast<T>(
        static_cast<float>(c10::Half(*p, c10::Half::from_bits())))};
  }
  void store(T* p, int64_t = 1) const {
    *p = value;
  }
  void store_bfloat16(uint16_t* p, int64_t = 1) const {
    *p = c10::detail::round_to_nearest_even(static_cast<float>(value));
  }
  /// Rounds up if the 16 bits that are cut off plus `noise` overflow.
  void store_bfloat16_with(Bits noise, uint16_t* p, int64_t = 1) const {
    const auto narrow = static_cast<float>(value);
    *p = std::isnan(narrow)
             ? 0x7fc0
             : static_cast<uint16_t>(
                   (std::bit_cast<uint32_t>(narrow) + noise) >> 16);
  }
  static Bits noise(uint32_t key0, uint32_t key1, uint32_t first) {
    return stochastic_noise(key0, key1, first);
  }
  void store_float16(uint16_t* p, int64_t = 1) const {
    *p = c10::Half(static_cast<float>(value)).x;
  }
  friend ScalarVec operator+(ScalarVec a, ScalarVec b) {
    return {a.value + b.value};
  }
  friend ScalarVec operator-(ScalarVec a, ScalarVec b) {
    return {a.value - b.value};
  }
  friend ScalarVec operator*(ScalarVec a, ScalarVec b) {
    return {a.value * b.value};
  }
  friend ScalarVec operator/(ScalarVec a, ScalarVec b) {
    return {a.value / b.value};
  }
  friend ScalarVec fma(ScalarVec a, ScalarVec b, ScalarVec c) {
    return {std::fma(a.value, b.value, c.value)};
  }
  friend ScalarVec sqrt(ScalarVec a) {
    return {std::sqrt(a.value)};
  }
  /// 1, -1, or the zero itself; NaN if `a` is NaN.
  friend ScalarVec sign(ScalarVec a) {
    return {a.value > 0 ? T{1} : a.value < 0 ? T{-1} : a.value};
  }
};

} // namespace

} // namespace tessera::runtime
