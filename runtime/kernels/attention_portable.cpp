// SPDX-License-Identifier: Apache-2.0
// Pattern attention in plain C++, for any processor.
#include "tessera/runtime/kernels/attention_loop.h"
#include "tessera/runtime/kernels/exponential_portable.h"

namespace tessera::runtime {

const AttentionKernel kAttentionPortable{
    .forward = &detail::attention_unit_forward<ScalarVec<float>>,
    .backward = &detail::attention_unit_backward<ScalarVec<float>>};

const AttentionKernel& attention_kernel(Isa isa) {
  check_isa(isa);
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) {
    return kAttentionAvx512;
  }
  if (isa == Isa::kAvx2) {
    return kAttentionAvx2;
  }
#endif
  return kAttentionPortable;
}

} // namespace tessera::runtime
