// SPDX-License-Identifier: Apache-2.0
#pragma once
// `exponential()` and `larger()` of Avx2Vec, see exponential.h. Only sources
// compiled for AVX2 and FMA include it.

#include "tessera/runtime/kernels/exponential.h"
#include "tessera/runtime/kernels/vec_avx2.h"

namespace tessera::runtime {

namespace {

/// b where a is NaN.
Avx2Vec larger(Avx2Vec a, Avx2Vec b) {
  return {_mm256_max_ps(a.value, b.value)};
}

/// 2^n, n from -126 to 127.
__m256 power_of_two(__m256i n) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

Avx2Vec exponential(Avx2Vec x) {
  // The second one where the first one is NaN.
  const __m256 bounded = _mm256_max_ps(_mm256_set1_ps(kLeastExponent), x.value);
  const __m256 n = _mm256_round_ps(
      _mm256_mul_ps(bounded, _mm256_set1_ps(kLog2E)),
      _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Avx2Vec rest = exponential_of_rest<Avx2Vec>({bounded}, {n});
  // In two halves: 2^n itself may be too small for a normal number.
  const __m256i exponent = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(exponent, 1);
  return {_mm256_mul_ps(
      _mm256_mul_ps(rest.value, power_of_two(half)),
      power_of_two(_mm256_sub_epi32(exponent, half)))};
}

} // namespace

} // namespace tessera::runtime
