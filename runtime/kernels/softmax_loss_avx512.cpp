// SPDX-License-Identifier: Apache-2.0
// The softmax loss with AVX-512. This file is compiled for it, so nothing in it
// may be called before the processor has been checked.
#include "tessera/runtime/kernels/exponential.h"
#include "tessera/runtime/kernels/softmax_loss_loop.h"
#include "tessera/runtime/kernels/vec_avx512.h"

namespace tessera::runtime {

namespace {

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

void softmax_loss_avx512(
    const SoftmaxLossRows& all,
    int64_t begin,
    int64_t end) {
  detail::softmax_loss_rows<Avx512Vec>(all, begin, end);
}

const SoftmaxPartKernels kSoftmaxPartAvx512{
    .sums = &detail::softmax_part_sums_rows<Avx512Vec>,
    .gradient = &detail::softmax_part_gradient_rows<Avx512Vec>};

} // namespace tessera::runtime
