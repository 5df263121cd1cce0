// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/tied_parameter.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace tessera {

namespace {

/// The other end of the model; this pipeline stage if there is no other.
int opposite(const RingChannels& stages) {
  const int last = stages.size() - 1;
  if (stages.index() == 0) {
    return last;
  }
  return stages.index() == last ? 0 : stages.index();
}

} // namespace

void copy_tied_parameter(const at::Tensor& parameter, RingChannels& stages) {
  const int other = opposite(stages);
  if (other == stages.index()) {
    return;
  }
  const c10::NoGradGuard no_grad;
  const char* what = "copy of a parameter that the first and last stage share";
  if (stages.index() == 0) {
    stages.send(parameter.detach(), other, what).wait();
  } else {
    stages.receive(parameter.detach(), other, what).wait();
  }
}

void sum_tied_gradients(const at::Tensor& parameter, RingChannels& stages) {
  const int other = opposite(stages);
  if (other == stages.index()) {
    return;
  }
  const c10::NoGradGuard no_grad;
  const char* what = "sum of gradients that the first and last stage share";
  const at::Tensor mine = parameter.grad().defined()
                              ? parameter.grad().contiguous()
                              : at::zeros_like(parameter);
  const at::Tensor theirs = at::empty_like(mine);
  LaneCollective sent = stages.send(mine, other, what);
  stages.receive(theirs, other, what).wait();
  sent.wait();
  // a + b and b + a have the same bits.
  parameter.mutable_grad() = mine + theirs;
}

} // namespace tessera
