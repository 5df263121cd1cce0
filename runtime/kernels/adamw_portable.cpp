// SPDX-License-Identifier: Apache-2.0
// AdamW in plain C++, for any processor and for float64.

#include "tessera/runtime/kernels/adamw_cpu.h"
#include "tessera/runtime/kernels/adamw_kernel.h"
#include "tessera/runtime/kernels/vec_scalar.h"

namespace tessera::runtime {

AdamWKernel<float> adamw_portable_float() {
  return &detail::AdamWLoop<ScalarVec<float>>::step;
}

AdamWKernel<double> adamw_portable_double() {
  return &detail::AdamWLoop<ScalarVec<double>>::step;
}

} // namespace tessera::runtime
