// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Avx2Vec` is a vector of eight floats with AVX2, FMA and F16C. Only sources
// compiled for these include it. Everything has internal linkage, so that no
// code is shared with code that runs on any machine.

#include <immintrin.h>

#include <cstdint>

namespace tessera::runtime {

namespace {

struct Avx2Vec {
  using Scalar = float;
  static constexpr int64_t kWidth = 8;
  using Bits = __m256i;
  __m256 value;

  Avx2Vec() = default;
  Avx2Vec(__m256 v) : value(v) {}
  Avx2Vec(float v) : value(_mm256_set1_ps(v)) {}

  static Avx2Vec load(const float* p) {
    return {_mm256_loadu_ps(p)};
  }
  static Avx2Vec load(const float* p, int64_t count) {
    return {_mm256_maskload_ps(p, first(count))};
  }
  template <typename... Count>
  static Avx2Vec load_bfloat16(const uint16_t* p, Count... count) {
    __m256i bits = _mm256_cvtepu16_epi32(load_half(p, count...));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16))};
  }
  template <typename... Count>
  static Avx2Vec load_float16(const uint16_t* p, Count... count) {
    return {_mm256_cvtph_ps(load_half(p, count...))};
  }
  void store(float* p) const {
    _mm256_storeu_ps(p, value);
  }
  void store(float* p, int64_t count) const {
    _mm256_maskstore_ps(p, first(count), value);
  }
  template <typename... Count>
  void store_bfloat16(uint16_t* p, Count... count) const {
    __m256i bits = _mm256_castps_si256(value);
    __m256i odd =
        _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    store_half(
        rounded(_mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), p, count...);
  }
  /// Rounds up if the 16 bits that are cut off plus `noise` overflow.
  template <typename... Count>
  void store_bfloat16_with(Bits noise, uint16_t* p, Count... count) const {
    store_half(rounded(noise), p, count...);
  }
  static Bits noise(uint32_t key0, uint32_t key1, uint32_t first) {
    __m256i x = _mm256_add_epi32(
        _mm256_set1_epi32(static_cast<int>(first)),
        _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    x = _mm256_xor_si256(x, _mm256_set1_epi32(static_cast<int>(key0)));
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
    x = _mm256_mullo_epi32(x, _mm256_set1_epi32(0x7feb352d));
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
    x = _mm256_add_epi32(x, _mm256_set1_epi32(static_cast<int>(key1)));
    x = _mm256_mullo_epi32(x, _mm256_set1_epi32(static_cast<int>(0x846ca68bu)));
    return _mm256_srli_epi32(x, 16);
  }
  template <typename... Count>
  void store_float16(uint16_t* p, Count... count) const {
    store_half(_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT), p, count...);
  }
  friend Avx2Vec operator+(Avx2Vec a, Avx2Vec b) {
    return {_mm256_add_ps(a.value, b.value)};
  }
  friend Avx2Vec operator-(Avx2Vec a, Avx2Vec b) {
    return {_mm256_sub_ps(a.value, b.value)};
  }
  friend Avx2Vec operator*(Avx2Vec a, Avx2Vec b) {
    return {_mm256_mul_ps(a.value, b.value)};
  }
  friend Avx2Vec operator/(Avx2Vec a, Avx2Vec b) {
    return {_mm256_div_ps(a.value, b.value)};
  }
  friend Avx2Vec fma(Avx2Vec a, Avx2Vec b, Avx2Vec c) {
    return {_mm256_fmadd_ps(a.value, b.value, c.value)};
  }
  friend Avx2Vec sqrt(Avx2Vec a) {
    return {_mm256_sqrt_ps(a.value)};
  }
  /// 1, -1, or the zero itself; NaN if `a` is NaN.
  friend Avx2Vec sign(Avx2Vec a) {
    __m256 signed_one = _mm256_or_ps(
        _mm256_and_ps(a.value, _mm256_set1_ps(-0.0f)), _mm256_set1_ps(1.0f));
    __m256 unsigned_or_nan =
        _mm256_cmp_ps(a.value, _mm256_setzero_ps(), _CMP_EQ_UQ);
    return {_mm256_blendv_ps(signed_one, a.value, unsigned_or_nan)};
  }

 private:
  __m128i rounded(__m256i bias) const {
    __m256i sum = _mm256_add_epi32(_mm256_castps_si256(value), bias);
    __m256i is_nan =
        _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    __m256i bits = _mm256_blendv_epi8(
        _mm256_srli_epi32(sum, 16), _mm256_set1_epi32(0x7fc0), is_nan);
    return _mm_packus_epi32(
        _mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  }
  static __m256i first(int64_t count) {
    return _mm256_cmpgt_epi32(
        _mm256_set1_epi32(static_cast<int>(count)),
        _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static __m128i load_half(const uint16_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static __m128i load_half(const uint16_t* p, int64_t count) {
    uint16_t all[kWidth] = {};
    for (int64_t i = 0; i < count; ++i) {
      all[i] = p[i];
    }
    return load_half(all);
  }
  static void store_half(__m128i bits, uint16_t* p) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bits);
  }
  static void store_half(__m128i bits, uint16_t* p, int64_t count) {
    uint16_t all[kWidth];
    store_half(bits, all);
    for (int64_t i = 0; i < count; ++i) {
      p[i] = all[i];
    }
  }
};

} // namespace

} // namespace tessera::runtime
