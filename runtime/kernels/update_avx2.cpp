// SPDX-License-Identifier: Apache-2.0
// Optimizer kernels with AVX2, FMA and F16C. This file is compiled for these,
// so nothing in it may be called before the processor has been checked.

#include "tessera/runtime/kernels/update_loops.h"
#include "tessera/runtime/kernels/vec_avx2.h"

namespace tessera::runtime {

UpdateKernels<float> update_kernels_avx2() {
  return detail::update_kernels<Avx2Vec>(FusedSteps());
}

} // namespace tessera::runtime
