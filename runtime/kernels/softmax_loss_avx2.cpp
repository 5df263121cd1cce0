// SPDX-License-Identifier: Apache-2.0
// The softmax loss with AVX2, FMA and F16C. This file is compiled for these, so
// nothing in it may be called before the processor has been checked.
#include "tessera/runtime/kernels/exponential_avx2.h"
#include "tessera/runtime/kernels/softmax_loss_loop.h"

namespace tessera::runtime {

void softmax_loss_avx2(const SoftmaxLossRows& all, int64_t begin, int64_t end) {
  detail::softmax_loss_rows<Avx2Vec>(all, begin, end);
}

const SoftmaxPartKernels kSoftmaxPartAvx2{
    .sums = &detail::softmax_part_sums_rows<Avx2Vec>,
    .gradient = &detail::softmax_part_gradient_rows<Avx2Vec>};

} // namespace tessera::runtime
