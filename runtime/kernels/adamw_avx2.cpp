// SPDX-License-Identifier: Apache-2.0
// AdamW with AVX2, FMA and F16C. This file is compiled for these, so nothing in
// it may be called before the processor has been checked.

#include "tessera/runtime/kernels/adamw_cpu.h"
#include "tessera/runtime/kernels/adamw_kernel.h"
#include "tessera/runtime/kernels/vec_avx2.h"

namespace tessera::runtime {

AdamWKernel<float> adamw_avx2() {
  return &detail::AdamWLoop<Avx2Vec>::step;
}

} // namespace tessera::runtime
