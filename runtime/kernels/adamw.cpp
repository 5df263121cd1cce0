// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/adamw.h"

#include "tessera/runtime/kernels/update_runs.h"

namespace tessera::runtime {

bool adamw_(
    const at::Tensor& master,
    const at::Tensor& grad,
    const at::Tensor& exp_avg,
    const at::Tensor& exp_avg_sq,
    const AdamWStep& step,
    const at::Tensor& low_precision) {
  const AdamWRun run{{master, grad, exp_avg, exp_avg_sq, low_precision}, step};
  return adamw_runs_({&run, 1});
}

} // namespace tessera::runtime
