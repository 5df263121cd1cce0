// SPDX-License-Identifier: Apache-2.0
// Residual norms in plain C++, for any processor.
#include "tessera/runtime/kernels/residual_norm_loop.h"
#include "tessera/runtime/kernels/vec_scalar.h"

namespace tessera::runtime {

namespace {

ScalarVec<float> kept(const uint8_t* mask, ScalarVec<float> /*tag*/) {
  return {static_cast<float>(*mask)};
}

} // namespace

const ResidualNormKernel kResidualNormPortable{
    .forward = &detail::residual_norm_rows<ScalarVec<float>>,
    .backward = &detail::residual_norm_backward_rows<ScalarVec<float>>};

const ResidualNormKernel& residual_norm_kernel(Isa isa) {
  check_isa(isa);
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) {
    return kResidualNormAvx512;
  }
  if (isa == Isa::kAvx2) {
    return kResidualNormAvx2;
  }
#endif
  return kResidualNormPortable;
}

} // namespace tessera::runtime
