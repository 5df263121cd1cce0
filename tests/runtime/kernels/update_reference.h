// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors for optimizer kernels, and every kernel as a function of them.

#include "tessera/runtime/kernels/lamb.h"
#include "tessera/runtime/kernels/update_segments.h"

#include <torch/torch.h>

#include <span>

namespace tessera {

inline runtime::UpdateTensors random_tensors(
    int64_t numel,
    at::ScalarType dtype) {
  torch::manual_seed(numel);
  const auto random = [&] { return at::randn({numel}, dtype); };
  runtime::UpdateTensors tensors{
      random(), random(), random(), random().abs_(), at::Tensor()};
  tensors.moment_diff = random();
  tensors.previous_grad = random();
  return tensors;
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
      copy(t.low_precision),
      t.grad_factor,
      copy(t.moment_diff),
      copy(t.previous_grad)};
}

/// The kernels as a user calls them: those of the device of the tensors.
struct PublicKernels {
  void update(std::span<const runtime::UpdateSegment> segments) const {
    runtime::update_segments_(segments);
  }
  void lamb_moments(
      std::span<const runtime::LambSegment> segments,
      const at::Tensor& sums) const {
    runtime::lamb_moments_(segments, sums);
  }
  void lamb_weights(std::span<const runtime::LambSegment> segments) const {
    runtime::lamb_weights_(segments);
  }
};

/// Calls body(update, name) for every optimizer; update takes the tensors.
/// @param kernels PublicKernels, or what stands for them.
template <typename Body, typename Kernels = PublicKernels>
void for_each_update(const Body& body, const Kernels& kernels = {}) {
  const auto updates = [&](const runtime::UpdateStep& step) {
    return [&kernels, step](const runtime::UpdateTensors& t) {
      const runtime::UpdateSegment segment{t, step};
      kernels.update({&segment, 1});
    };
  };
  body(updates(runtime::AdamWStep{.step = 3}), "AdamW");
  body(
      updates(runtime::AdamWStep{
          .decoupled_decay = false, .step = 3, .grad_scale = 0.3}),
      "Adam");
  body(
      updates(runtime::SgdStep{
          .momentum = 0.9,
          .weight_decay = 0.1,
          .nesterov = true,
          .step = 2,
          .grad_scale = 0.3}),
      "SGD");
  body(updates(runtime::SgdStep{.lr = 0.1}), "SGD without momentum");
  body(
      updates(runtime::LionStep{.weight_decay = 0.1, .grad_scale = 0.3}),
      "Lion");
  body(
      updates(
          runtime::AdanStep{.weight_decay = 0.1, .step = 3, .grad_scale = 0.3}),
      "Adan");
  body(
      updates(runtime::AdanStep{.weight_decay = 0.1, .no_prox = true}),
      "Adan's first step");
  body(
      [&kernels](const runtime::UpdateTensors& t) {
        runtime::LambSegment segment{t, {.step = 3, .grad_scale = 0.3}, {}};
        kernels.lamb_moments(
            {&segment, 1},
            at::empty({1, 2}, t.master.options().dtype(at::kDouble)));
        // A trust ratio.
        segment.lr_factor =
            at::full({}, 0.7, t.master.options().dtype(at::kDouble));
        kernels.lamb_weights({&segment, 1});
      },
      "LAMB");
}

} // namespace tessera
