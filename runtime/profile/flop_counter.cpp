// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/profile/flop_counter.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

namespace tessera::runtime {

void FlopFrames::begin(const at::RecordFunction& call) {
  Frame frame;
  if (call.scope() == at::RecordScope::FUNCTION) {
    frame.flops = operator_flops(call.name(), call.inputs());
  }
  frames_.push_back(frame);
}

OperatorFlops FlopFrames::end() {
  const Frame frame = frames_.back();
  frames_.pop_back();
  if (!frames_.empty() && (frame.flops.all > 0 || frame.counts_inside)) {
    frames_.back().counts_inside = true;
  }
  return frame.counts_inside ? OperatorFlops{} : frame.flops;
}

void FlopCounter::on_begin(const at::RecordFunction& call) {
  frames_.local().begin(call);
}

void FlopCounter::on_end(const at::RecordFunction& /*call*/) {
  const OperatorFlops flops = frames_.local().end();
  if (!is_recomputing()) {
    flops_ += flops.all - flops.repeated;
  }
}

bool is_recomputing() {
  return torch::autograd::get_current_graph_task_id() >= 0 &&
         at::GradMode::is_enabled();
}

} // namespace tessera::runtime
