// SPDX-License-Identifier: Apache-2.0
// AdamW with AVX-512. This file is compiled for it, so nothing in it may be
// called before the processor has been checked.

#include "tessera/runtime/kernels/adamw_cpu.h"
#include "tessera/runtime/kernels/adamw_kernel.h"
#include "tessera/runtime/kernels/vec_avx512.h"

namespace tessera::runtime {

AdamWKernel<float> adamw_avx512() {
  return &detail::AdamWLoop<Avx512Vec>::step;
}

} // namespace tessera::runtime
