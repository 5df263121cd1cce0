// SPDX-License-Identifier: Apache-2.0
#pragma once
// A parameter that the first and the last stage share, such as an embedding
// that is the head as well, for training loops of tests without an engine.

#include "tessera/runtime/comm/ring_channels.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace tessera::tests {

/// Each of the two stages has a copy; all others have none, and their calls do
/// nothing. With one stage there is one tensor, used twice, and nothing to do
/// either. Both functions block, between steps only: the first and the last
/// stage must not be in the middle of a pipeline step.
/// @return the other stage that has it; this one where there is none.
inline int stage_with_copy(const runtime::RingChannels& stages) {
  const int last = stages.size() - 1;
  if (stages.index() == 0) {
    return last;
  }
  return stages.index() == last ? 0 : stages.index();
}

/// Before training: the last stage takes over the first one's values.
/// @param parameter contiguous.
inline void copy_tied_parameter(
    const at::Tensor& parameter,
    runtime::RingChannels& stages) {
  const int other = stage_with_copy(stages);
  if (other == stages.index()) {
    return;
  }
  const c10::NoGradGuard no_grad;
  const char* label = "copy of a parameter that the first and last stage share";
  if (stages.index() == 0) {
    stages.send(parameter.detach(), other, label).wait();
  } else {
    stages.receive(parameter.detach(), other, label).wait();
  }
}

/// After each step: the gradient of both copies becomes their sum, the same
/// bits on both, so that equal updates keep the copies equal. A missing one
/// counts as zero.
inline void sum_tied_gradients(
    const at::Tensor& parameter,
    runtime::RingChannels& stages) {
  const int other = stage_with_copy(stages);
  if (other == stages.index()) {
    return;
  }
  const c10::NoGradGuard no_grad;
  const char* label = "sum of gradients that the first and last stage share";
  const at::Tensor self_tensor = parameter.grad().defined()
                                     ? parameter.grad().contiguous()
                                     : at::zeros_like(parameter);
  const at::Tensor peer_tensor = at::empty_like(self_tensor);
  runtime::LaneCollective sent = stages.send(self_tensor, other, label);
  stages.receive(peer_tensor, other, label).wait();
  sent.wait();
  // a + b and b + a have the same bits.
  parameter.mutable_grad() = self_tensor + peer_tensor;
}

} // namespace tessera::tests
