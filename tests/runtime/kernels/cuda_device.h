// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CudaDevice` is a CUDA device as device_cases.h uses it.

#include "runtime/kernels/update_reference.h"

#include <ATen/ops/empty.h>

namespace tessera {

struct CudaDevice : PublicKernels {
  static constexpr int64_t kManyTurns = 3'000'001;

  at::Tensor copy(const at::Tensor& t, int64_t offset) const {
    return at::empty({t.numel() + offset}, t.options().device(at::kCUDA))
        .narrow(0, offset, t.numel())
        .copy_(t);
  }
};

} // namespace tessera
