// SPDX-License-Identifier: Apache-2.0
// AdamW with AVX-512. This file is compiled for it, so nothing in it may be
// reached before the processor was asked.

#include "tessera/runtime/kernels/adamw_cpu.h"
#include "tessera/runtime/kernels/adamw_kernel.h"

#include <immintrin.h>

namespace tessera {

namespace {

struct Avx512Vec {
  using Scalar = float;
  static constexpr int64_t kWidth = 16;
  __m512 value;

  static Avx512Vec broadcast(float value) {
    return {_mm512_set1_ps(value)};
  }
  static Avx512Vec load(const float* p) {
    return {_mm512_loadu_ps(p)};
  }
  static Avx512Vec load(const float* p, int64_t count) {
    return {_mm512_maskz_loadu_ps(first(count), p)};
  }
  void store(float* p) const {
    _mm512_storeu_ps(p, value);
  }
  void store(float* p, int64_t count) const {
    _mm512_mask_storeu_ps(p, first(count), value);
  }
  // Not VCVTNEPS2BF16: it turns denormals into zero.
  template <typename... Count>
  void store_bfloat16(uint16_t* p, Count... count) const {
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
    __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    rounded = _mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7fc0));
    store_half(_mm512_cvtepi32_epi16(rounded), p, count...);
  }
  template <typename... Count>
  void store_float16(uint16_t* p, Count... count) const {
    store_half(_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT), p, count...);
  }
  friend Avx512Vec operator+(Avx512Vec a, Avx512Vec b) {
    return {_mm512_add_ps(a.value, b.value)};
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

 private:
  static __mmask16 first(int64_t count) {
    return static_cast<__mmask16>((1u << count) - 1);
  }
  static void store_half(__m256i bits, uint16_t* p) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
  }
  static void store_half(__m256i bits, uint16_t* p, int64_t count) {
    _mm256_mask_storeu_epi16(p, first(count), bits);
  }
};

} // namespace

AdamWKernel<float> adamw_avx512() {
  return detail::AdamWLoop<Avx512Vec>::kernel();
}

} // namespace tessera
