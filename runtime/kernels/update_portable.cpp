// SPDX-License-Identifier: Apache-2.0
// Optimizer kernels in plain C++, for any processor and for float64.

#include "tessera/runtime/kernels/update_loops.h"
#include "tessera/runtime/kernels/vec_scalar.h"

namespace tessera::runtime {

UpdateKernels<float> update_kernels_portable_float() {
  return detail::update_kernels<ScalarVec<float>>(FusedSteps());
}

UpdateKernels<double> update_kernels_portable_double() {
  return detail::update_kernels<ScalarVec<double>>(FusedSteps());
}

} // namespace tessera::runtime
