// SPDX-License-Identifier: Apache-2.0
// The softmax loss with AVX-512. This file is compiled for it, so nothing in it
// may be called before the processor has been checked.
#include "tessera/runtime/kernels/exponential_avx512.h"
#include "tessera/runtime/kernels/softmax_loss_loop.h"

namespace tessera::runtime {

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
