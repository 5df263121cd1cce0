// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors for optimizer kernels, and every kernel as a function of them.

#include "tessera/runtime/kernels/lamb.h"
#include "tessera/runtime/kernels/update_runs.h"

#include <torch/torch.h>

namespace tessera {

inline runtime::UpdateTensors random_tensors(
    int64_t numel,
    at::ScalarType dtype) {
  torch::manual_seed(numel);
  const auto random = [&] { return at::randn({numel}, dtype); };
  return {random(), random(), random(), random().abs_(), at::Tensor()};
}

/// Copies of the tensors in another type or on another device.
template <typename Target>
runtime::UpdateTensors converted(
    const runtime::UpdateTensors& t,
    const Target& target) {
  const auto copy = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(target, false, /*copy=*/true)
                            : at::Tensor();
  };
  return {
      copy(t.master),
      copy(t.grad),
      copy(t.moment),
      copy(t.moment_sq),
      copy(t.low_precision)};
}

/// Calls body(update, name) for every optimizer; update takes the tensors.
template <typename Body>
void for_each_update(const Body& body) {
  body(
      [](const runtime::UpdateTensors& t) {
        const runtime::AdamWRun run{t, {.step = 3}};
        runtime::adamw_runs_({&run, 1});
      },
      "AdamW");
  body(
      [](const runtime::UpdateTensors& t) {
        const runtime::AdamWRun run{
            t, {.decoupled_decay = false, .step = 3, .grad_scale = 0.3}};
        runtime::adamw_runs_({&run, 1});
      },
      "Adam");
  body(
      [](const runtime::UpdateTensors& t) {
        const runtime::SgdRun run{
            t,
            {.momentum = 0.9,
             .weight_decay = 0.1,
             .nesterov = true,
             .step = 2,
             .grad_scale = 0.3}};
        runtime::sgd_runs_({&run, 1});
      },
      "SGD");
  body(
      [](const runtime::UpdateTensors& t) {
        const runtime::SgdRun run{t, {.lr = 0.1}};
        runtime::sgd_runs_({&run, 1});
      },
      "SGD without momentum");
  body(
      [](const runtime::UpdateTensors& t) {
        const runtime::LionRun run{t, {.weight_decay = 0.1, .grad_scale = 0.3}};
        runtime::lion_runs_({&run, 1});
      },
      "Lion");
  body(
      [](const runtime::UpdateTensors& t) {
        const runtime::LambRun run{t, {.step = 3, .grad_scale = 0.3}};
        double sums[2] = {};
        double* own = sums;
        runtime::lamb_moments_({&run, 1}, {&own, 1});
        runtime::lamb_weights_({&run, 1});
      },
      "LAMB");
}

} // namespace tessera
