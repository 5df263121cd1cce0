// SPDX-License-Identifier: Apache-2.0
#pragma once
// `power_sums()` are the PowerSums of tensors, waiting at once.

#include "tessera/runtime/kernels/power_sum.h"

#include <vector>

namespace tessera::runtime {

inline std::vector<double> power_sums(
    const std::vector<at::Tensor>& runs,
    double p) {
  const PowerSums sums(runs, p);
  return PowerSums::wait({&sums}).front();
}

} // namespace tessera::runtime
