// SPDX-License-Identifier: Apache-2.0
// Pattern attention with AVX-512. This file is compiled for it, so nothing in
// it may be called before the processor has been checked.
#include "tessera/runtime/kernels/attention_loop.h"
#include "tessera/runtime/kernels/exponential_avx512.h"

namespace tessera::runtime {

const AttentionKernel kAttentionAvx512{
    .forward = &detail::attention_unit_forward<Avx512Vec>,
    .backward = &detail::attention_unit_backward<Avx512Vec>};

} // namespace tessera::runtime
