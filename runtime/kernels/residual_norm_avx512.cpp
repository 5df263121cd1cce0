// SPDX-License-Identifier: Apache-2.0
// Residual norms with AVX-512. This file is compiled for it, so nothing in it
// may be called before the processor has been checked.
#include "tessera/runtime/kernels/residual_norm_loop.h"
#include "tessera/runtime/kernels/vec_avx512.h"

namespace tessera::runtime {

namespace {

Avx512Vec kept(const uint8_t* mask, Avx512Vec /*tag*/) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(mask))))};
}

} // namespace

const ResidualNormKernel kResidualNormAvx512{
    .forward = &detail::residual_norm_rows<Avx512Vec>,
    .backward = &detail::residual_norm_backward_rows<Avx512Vec>};

} // namespace tessera::runtime
