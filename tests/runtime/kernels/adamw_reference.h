// SPDX-License-Identifier: Apache-2.0
#pragma once
// What AdamW tests compare with, and the data they do it on.

#include "tessera/runtime/kernels/update_segments.h"

#include <torch/torch.h>

#include <cmath>
#include <cstring>

namespace tessera {

/// Random signs and magnitudes over `decades` powers of ten, centred on one.
inline at::Tensor random_spread(
    int64_t numel,
    at::ScalarType dtype,
    double decades = 6) {
  at::Tensor exponent = (at::rand({numel}, at::kDouble) - 0.5) * decades;
  at::Tensor sign = at::randn({numel}, at::kDouble).sign();
  return (sign * at::pow(10.0, exponent)).to(dtype);
}

/// Master, gradient and moments of a shard, as views that begin `offset`
/// elements into an allocation.
struct AdamWState {
  at::Tensor master;
  at::Tensor grad;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;

  AdamWState() = default;

  AdamWState(int64_t numel, int64_t offset, at::ScalarType dtype) {
    const auto view = [&] {
      return at::zeros({numel + offset}, dtype).narrow(0, offset, numel);
    };
    master = view().copy_(at::randn({numel}, dtype));
    grad = view().copy_(random_spread(numel, dtype));
    exp_avg = view();
    exp_avg_sq = view();
  }

  template <typename Convert>
  AdamWState map(Convert convert) const {
    AdamWState result;
    result.master = convert(master);
    result.grad = convert(grad);
    result.exp_avg = convert(exp_avg);
    result.exp_avg_sq = convert(exp_avg_sq);
    return result;
  }

  AdamWState clone() const {
    return map([](const at::Tensor& t) { return t.clone(); });
  }

  AdamWState to(at::ScalarType dtype) const {
    return map([&](const at::Tensor& t) { return t.to(dtype); });
  }

  template <typename T>
  runtime::AdamWShard<T> shard(const runtime::AdamWStep& step) const {
    return {
        .master = master.mutable_data_ptr<T>(),
        .grad = grad.const_data_ptr<T>(),
        .states =
            {exp_avg.mutable_data_ptr<T>(), exp_avg_sq.mutable_data_ptr<T>()},
        .numel = master.numel(),
        .rule = runtime::AdamWRule<T>(step)};
  }

  /// One step, in place.
  bool update(
      const runtime::AdamWStep& step,
      const at::Tensor& low_precision = {}) const {
    const runtime::UpdateSegment run{
        {master, grad, exp_avg, exp_avg_sq, low_precision}, step};
    return runtime::update_segments_({&run, 1});
  }
};

/// torch::optim::AdamW on a copy of one tensor.
class LibTorchAdamW {
 public:
  LibTorchAdamW(const at::Tensor& master, const runtime::AdamWStep& step)
      : parameter_(master.clone().set_requires_grad(true)),
        optimizer_(
            std::vector<at::Tensor>{parameter_},
            torch::optim::AdamWOptions(step.lr)
                .betas({step.beta1, step.beta2})
                .eps(step.eps)
                .weight_decay(step.weight_decay)) {
    // An optimizer has no state before a step; a gradient of zero makes one
    // that only decays the weights, which are then restored.
    parameter_.mutable_grad() = at::zeros_like(master);
    optimizer_.step();
    set_step(0);
    torch::NoGradGuard no_grad;
    parameter_.copy_(master);
  }

  void set_step(int64_t step) {
    state().step(step);
  }

  void step(const at::Tensor& grad) {
    parameter_.mutable_grad() = grad.clone();
    optimizer_.step();
  }

  at::Tensor master() const {
    return parameter_.detach();
  }
  at::Tensor exp_avg() {
    return state().exp_avg();
  }
  at::Tensor exp_avg_sq() {
    return state().exp_avg_sq();
  }

 private:
  torch::optim::AdamWParamState& state() {
    return static_cast<torch::optim::AdamWParamState&>(
        *optimizer_.state().at(parameter_.unsafeGetTensorImpl()));
  }

  at::Tensor parameter_;
  torch::optim::AdamW optimizer_;
};

/// The equations, in float64, as one would write them down.
inline void reference_adamw_float64(
    AdamWState& state,
    const runtime::AdamWStep& step) {
  const double correction1 = 1 - std::pow(step.beta1, step.step);
  const double correction2 = 1 - std::pow(step.beta2, step.step);
  state.exp_avg = step.beta1 * state.exp_avg + (1 - step.beta1) * state.grad;
  state.exp_avg_sq = step.beta2 * state.exp_avg_sq +
                     (1 - step.beta2) * state.grad * state.grad;
  at::Tensor denom = (state.exp_avg_sq / correction2).sqrt() + step.eps;
  state.master = state.master - step.lr * step.weight_decay * state.master -
                 step.lr * (state.exp_avg / correction1) / denom;
}

/// Equal as memory: tells 0 from -0 and lets a NaN equal itself.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.is_contiguous() && b.is_contiguous() &&
         (a.numel() == 0 ||
          std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

/// Equal as memory, save that any NaN equals any other.
inline bool same_bits_or_nan(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.isnan(), b.isnan()) &&
         same_bits(
             a.nan_to_num(0.5, INFINITY, -INFINITY),
             b.nan_to_num(0.5, INFINITY, -INFINITY));
}

} // namespace tessera
