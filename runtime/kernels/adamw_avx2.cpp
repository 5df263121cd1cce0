// SPDX-License-Identifier: Apache-2.0
// AdamW with AVX2, FMA and F16C. This file is compiled for those, so nothing
// in it may be reached before the processor was asked.

#include "tessera/runtime/kernels/adamw_cpu.h"
#include "tessera/runtime/kernels/adamw_kernel.h"

#include <immintrin.h>

namespace tessera {

namespace {

struct Avx2Vec {
  using Scalar = float;
  static constexpr int64_t kWidth = 8;
  __m256 value;

  static Avx2Vec broadcast(float value) {
    return {_mm256_set1_ps(value)};
  }
  static Avx2Vec load(const float* p) {
    return {_mm256_loadu_ps(p)};
  }
  static Avx2Vec load(const float* p, int64_t count) {
    return {_mm256_maskload_ps(p, first(count))};
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
    __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    __m256i is_nan =
        _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), is_nan);
    store_half(
        _mm_packus_epi32(
            _mm256_castsi256_si128(rounded),
            _mm256_extracti128_si256(rounded, 1)),
        p,
        count...);
  }
  template <typename... Count>
  void store_float16(uint16_t* p, Count... count) const {
    store_half(_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT), p, count...);
  }
  friend Avx2Vec operator+(Avx2Vec a, Avx2Vec b) {
    return {_mm256_add_ps(a.value, b.value)};
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

 private:
  static __m256i first(int64_t count) {
    return _mm256_cmpgt_epi32(
        _mm256_set1_epi32(static_cast<int>(count)),
        _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
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

AdamWKernel<float> adamw_avx2() {
  return detail::AdamWLoop<Avx2Vec>::kernel();
}

} // namespace tessera
