// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Avx512Vec` is a vector of sixteen floats with AVX-512. Only sources compiled
// for it include it. Everything has internal linkage, so that no code is shared
// with code that runs on any machine.

#include <immintrin.h>

#include <cstdint>

namespace tessera::runtime {

namespace {

struct Avx512Vec {
  using Scalar = float;
  static constexpr int64_t kWidth = 16;
  using Bits = __m512i;
  __m512 value;

  Avx512Vec() = default;
  Avx512Vec(__m512 v) : value(v) {}
  Avx512Vec(float v) : value(_mm512_set1_ps(v)) {}

  static Avx512Vec load(const float* p) {
    return {_mm512_loadu_ps(p)};
  }
  static Avx512Vec load(const float* p, int64_t count) {
    return {_mm512_maskz_loadu_ps(first(count), p)};
  }
  template <typename... Count>
  static Avx512Vec load_bfloat16(const uint16_t* p, Count... count) {
    __m512i bits = _mm512_cvtepu16_epi32(load_half(p, count...));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))};
  }
  template <typename... Count>
  static Avx512Vec load_float16(const uint16_t* p, Count... count) {
    return {_mm512_cvtph_ps(load_half(p, count...))};
  }
  void store(float* p) const {
    _mm512_storeu_ps(p, value);
  }
  void store(float* p, int64_t count) const {
    _mm512_mask_storeu_ps(p, first(count), value);
  }
  // Not VCVTNEPS2BF16, which flushes denormals to zero.
  template <typename... Count>
  void store_bfloat16(uint16_t* p, Count... count) const {
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    store_half(
        rounded(_mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), p, count...);
  }
  /// Rounds up if the 16 bits that are cut off plus `noise` overflow.
  template <typename... Count>
  void store_bfloat16_with(Bits noise, uint16_t* p, Count... count) const {
    store_half(rounded(noise), p, count...);
  }
  static Bits noise(uint32_t key0, uint32_t key1, uint32_t first) {
    __m512i x = _mm512_add_epi32(
        _mm512_set1_epi32(static_cast<int>(first)),
        _mm512_setr_epi32(
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    x = _mm512_xor_si512(x, _mm512_set1_epi32(static_cast<int>(key0)));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32(0x7feb352d));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 15));
    x = _mm512_add_epi32(x, _mm512_set1_epi32(static_cast<int>(key1)));
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32(static_cast<int>(0x846ca68bu)));
    return _mm512_srli_epi32(x, 16);
  }
  template <typename... Count>
  void store_float16(uint16_t* p, Count... count) const {
    store_half(_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT), p, count...);
  }
  friend Avx512Vec operator+(Avx512Vec a, Avx512Vec b) {
    return {_mm512_add_ps(a.value, b.value)};
  }
  friend Avx512Vec operator-(Avx512Vec a, Avx512Vec b) {
    return {_mm512_sub_ps(a.value, b.value)};
  }
  friend Avx512Vec operator*(Avx512Vec a, Avx512Vec b) {
    return {_mm512_mul_ps(a.value, b.value)};
  }
  friend Avx512Vec operator/(Avx512Vec a, Avx512Vec b) {
    return {_mm512_div_ps(a.value, b.value)};
  }
  friend Avx512Vec fma(Avx512Vec a, Avx512Vec b, Avx512Vec c) {
    return {_mm512_fmadd_ps(a.value, b.value, c.value)};
  }
  friend Avx512Vec sqrt(Avx512Vec a) {
    return {_mm512_sqrt_ps(a.value)};
  }
  /// 1, -1, or the zero itself; NaN if `a` is NaN.
  friend Avx512Vec sign(Avx512Vec a) {
    __m512i bits = _mm512_castps_si512(a.value);
    __m512i sign_bit = _mm512_and_si512(bits, _mm512_set1_epi32(INT32_MIN));
    __m512 signed_one = _mm512_castsi512_ps(
        _mm512_or_si512(sign_bit, _mm512_castps_si512(_mm512_set1_ps(1.0f))));
    __mmask16 unsigned_or_nan =
        _mm512_cmp_ps_mask(a.value, _mm512_setzero_ps(), _CMP_EQ_UQ);
    return {_mm512_mask_mov_ps(signed_one, unsigned_or_nan, a.value)};
  }

 private:
  __m256i rounded(__m512i bias) const {
    __m512i sum = _mm512_add_epi32(_mm512_castps_si512(value), bias);
    __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(
        _mm512_srli_epi32(sum, 16), is_nan, _mm512_set1_epi32(0x7fc0)));
  }
  static __mmask16 first(int64_t count) {
    return static_cast<__mmask16>((1u << count) - 1);
  }
  static __m256i load_half(const uint16_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static __m256i load_half(const uint16_t* p, int64_t count) {
    return _mm256_maskz_loadu_epi16(first(count), p);
  }
  static void store_half(__m256i bits, uint16_t* p) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
  }
  static void store_half(__m256i bits, uint16_t* p, int64_t count) {
    _mm256_mask_storeu_epi16(p, first(count), bits);
  }
};

} // namespace

} // namespace tessera::runtime
