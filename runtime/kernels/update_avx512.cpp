// SPDX-License-Identifier: Apache-2.0
// Optimizer kernels with AVX-512. This file is compiled for it, so nothing in
// it may be called before the processor has been checked.

#include "tessera/runtime/kernels/update_loops.h"
#include "tessera/runtime/kernels/vec_avx512.h"

namespace tessera::runtime {

UpdateKernels<float> update_kernels_avx512() {
  return detail::update_kernels<Avx512Vec>(FusedSteps());
}

} // namespace tessera::runtime
