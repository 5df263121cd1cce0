// SPDX-License-Identifier: Apache-2.0
// Pattern attention with AVX2, FMA and F16C. This file is compiled for these,
// so nothing in it may be called before the processor has been checked.
#include "tessera/runtime/kernels/attention_loop.h"
#include "tessera/runtime/kernels/exponential_avx2.h"

namespace tessera::runtime {

const AttentionKernel kAttentionAvx2{
    .forward = &detail::attention_unit_forward<Avx2Vec>,
    .backward = &detail::attention_unit_backward<Avx2Vec>};

} // namespace tessera::runtime
