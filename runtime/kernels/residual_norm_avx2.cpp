// SPDX-License-Identifier: Apache-2.0
// Residual norms with AVX2, FMA and F16C. This file is compiled for these, so
// nothing in it may be called before the processor has been checked.
#include "tessera/runtime/kernels/residual_norm_loop.h"
#include "tessera/runtime/kernels/vec_avx2.h"

namespace tessera::runtime {

namespace {

Avx2Vec kept(const uint8_t* mask, Avx2Vec /*tag*/) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(mask))))};
}

} // namespace

const ResidualNormKernel kResidualNormAvx2{
    .forward = &detail::residual_norm_rows<Avx2Vec>,
    .backward = &detail::residual_norm_backward_rows<Avx2Vec>};

} // namespace tessera::runtime
