// SPDX-License-Identifier: Apache-2.0
// AdamW with AVX2, FMA and F16C. This file is compiled for those, so nothing
// in it may be reached before the processor was asked.

#include "tessera/runtime/kernels/adamw_cpu.h"
#include "tessera/runtime/kernels/adamw_kernel.h"
#include "tessera/runtime/kernels/vec_avx2.h"

namespace tessera {

AdamWKernel<float> adamw_avx2() {
  return &detail::AdamWLoop<Avx2Vec>::step;
}

} // namespace tessera
