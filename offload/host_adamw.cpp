// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/host_adamw.h"

#include "tessera/runtime/core/error.h"

#include <c10/core/GradMode.h>

namespace tessera {

namespace {

at::ScalarType state_dtype(const at::Tensor& weights) {
  TESSERA_CHECK(
      weights.is_floating_point(),
      "AdamW: weights of type ",
      weights.scalar_type(),
      " cannot be trained; freeze them (requires_grad_(false)) before wrap.");
  return weights.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

bool can_be_master(const at::Tensor& weights) {
  return weights.device().is_cpu() &&
         weights.scalar_type() == state_dtype(weights);
}

} // namespace

HostAdamW::HostAdamW(const at::Tensor& weights, MemoryLedger& ledger)
    : weights_(weights) {
  const auto allocate = [&] {
    return ledger.allocate_zeros(
        MemoryPurpose::kOptimizerState,
        weights.numel(),
        state_dtype(weights),
        at::kCPU);
  };
  exp_avg_ = allocate();
  exp_avg_sq_ = allocate();
  if (can_be_master(weights)) {
    master_ = weights_;
  } else {
    master_ = allocate();
    reload_master();
  }
}

int64_t HostAdamW::state_bytes(const at::Tensor& weights) {
  const auto size =
      static_cast<int64_t>(c10::elementSize(state_dtype(weights)));
  return weights.numel() * size * (can_be_master(weights) ? 2 : 3);
}

bool HostAdamW::weights_are_master() const {
  return master_.is_same(weights_);
}

void HostAdamW::reload_master() {
  const c10::NoGradGuard no_grad;
  if (!weights_are_master()) {
    master_.copy_(weights_);
  }
}

void HostAdamW::update(
    const at::Tensor& gradient,
    FlatSpan span,
    const AdamWStep& step) {
  const c10::NoGradGuard no_grad;
  const auto part = [&span](const at::Tensor& tensor) {
    return tensor.narrow(0, span.begin, span.numel);
  };
  const at::Tensor host_gradient =
      part(gradient).to(at::kCPU, master_.scalar_type());
  const bool writes_low_precision =
      weights_.device().is_cpu() && !weights_are_master();
  adamw_(
      part(master_),
      host_gradient,
      part(exp_avg_),
      part(exp_avg_sq_),
      step,
      writes_low_precision ? part(weights_) : at::Tensor());
  if (!weights_.device().is_cpu()) {
    part(weights_).copy_(part(master_));
  }
}

} // namespace tessera
