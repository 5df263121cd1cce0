// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CudaDevice` is a CUDA device as device_cases.h uses it.

#include "runtime/kernels/update_reference.h"
#include "support/cuda_devices.h"

#include <ATen/ops/empty.h>

namespace tessera {

struct CudaDevice : PublicKernels {
  static int64_t many_turns() {
    return tests::gpu_size(3'000'001, 5003);
  }

  at::Tensor copy(const at::Tensor& t, int64_t offset) const {
    return at::empty(
               {t.numel() + offset}, t.options().device(tests::cuda_device()))
        .narrow(0, offset, t.numel())
        .copy_(t);
  }
};

} // namespace tessera
