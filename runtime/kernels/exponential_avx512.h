// SPDX-License-Identifier: Apache-2.0
#pragma once
// `exponential()` and `larger()` of Avx512Vec, see exponential.h. Only sources
// compiled for AVX-512 include it.

#include "tessera/runtime/kernels/exponential.h"
#include "tessera/runtime/kernels/vec_avx512.h"

namespace tessera::runtime {

namespace {

/// b where a is NaN.
Avx512Vec larger(Avx512Vec a, Avx512Vec b) {
  return {_mm512_max_ps(a.value, b.value)};
}

Avx512Vec exponential(Avx512Vec x) {
  // The second one where the first one is NaN.
  const __m512 bounded = _mm512_max_ps(_mm512_set1_ps(kLeastExponent), x.value);
  const __m512 n = _mm512_roundscale_ps(
      _mm512_mul_ps(bounded, _mm512_set1_ps(kLog2E)),
      _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Avx512Vec rest = exponential_of_rest<Avx512Vec>({bounded}, {n});
  return {_mm512_scalef_ps(rest.value, n)};
}

} // namespace

} // namespace tessera::runtime
