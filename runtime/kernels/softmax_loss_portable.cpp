// SPDX-License-Identifier: Apache-2.0
// The softmax loss in plain C++, for any processor.
#include "tessera/runtime/kernels/exponential_portable.h"
#include "tessera/runtime/kernels/softmax_loss_loop.h"

namespace tessera::runtime {

void softmax_loss_portable(
    const SoftmaxLossRows& all,
    int64_t begin,
    int64_t end) {
  detail::softmax_loss_rows<ScalarVec<float>>(all, begin, end);
}

SoftmaxLossKernel* softmax_loss_kernel(Isa isa) {
  check_isa(isa);
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) {
    return &softmax_loss_avx512;
  }
  if (isa == Isa::kAvx2) {
    return &softmax_loss_avx2;
  }
#endif
  return &softmax_loss_portable;
}

const SoftmaxPartKernels kSoftmaxPartPortable{
    .sums = &detail::softmax_part_sums_rows<ScalarVec<float>>,
    .gradient = &detail::softmax_part_gradient_rows<ScalarVec<float>>};

const SoftmaxPartKernels& softmax_part_kernels(Isa isa) {
  check_isa(isa);
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) {
    return kSoftmaxPartAvx512;
  }
  if (isa == Isa::kAvx2) {
    return kSoftmaxPartAvx2;
  }
#endif
  return kSoftmaxPartPortable;
}

} // namespace tessera::runtime
