// SPDX-License-Identifier: Apache-2.0
#pragma once
// Adam and AdamW of plain LibTorch operators, with exact square roots.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace tessera::tests {

/// Correctly rounded, which at::sqrt is not on every processor.
template <typename T>
at::Tensor exact_sqrt_of(const at::Tensor& x) {
  const at::Tensor flat = x.contiguous();
  const at::Tensor root = at::empty_like(flat);
  const T* from = flat.const_data_ptr<T>();
  T* to = root.mutable_data_ptr<T>();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    to[i] = std::sqrt(from[i]);
  }
  return at::empty_like(x).copy_(root);
}

/// @param x on the CPU; on another device the root is the device's.
inline at::Tensor exact_sqrt(const at::Tensor& x) {
  if (!x.is_cpu()) {
    return x.sqrt();
  }
  return x.scalar_type() == at::kDouble ? exact_sqrt_of<double>(x)
                                        : exact_sqrt_of<float>(x);
}

struct PlainAdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  bool decoupled = true; ///< false: Adam, which adds the decay to the gradient
};

/// The operators of torch::optim::AdamW and torch::optim::Adam in their order,
/// but for the root. Like them it leaves parameters without a gradient alone.
class PlainAdamW {
 public:
  PlainAdamW(
      const std::vector<at::Tensor>& parameters,
      const PlainAdamWOptions& options)
      : options_(options) {
    for (const at::Tensor& parameter : parameters) {
      states_.push_back(
          {parameter, at::zeros_like(parameter), at::zeros_like(parameter)});
    }
  }

  void zero_grad() {
    for (State& state : states_) {
      state.parameter.mutable_grad() = at::Tensor();
    }
  }

  void step() {
    const c10::NoGradGuard no_grad;
    for (State& state : states_) {
      if (state.parameter.grad().defined()) {
        update(state);
      }
    }
  }

 private:
  struct State {
    at::Tensor parameter;
    at::Tensor exp_avg;
    at::Tensor exp_avg_sq;
    int64_t steps = 0;
  };

  void update(State& state) const {
    const PlainAdamWOptions& o = options_;
    at::Tensor& p = state.parameter;
    at::Tensor gradient = p.grad();
    if (o.weight_decay != 0) {
      if (o.decoupled) {
        p.mul_(1 - o.lr * o.weight_decay);
      } else {
        gradient = gradient.add(p, o.weight_decay);
      }
    }
    const auto t = static_cast<double>(++state.steps);
    const double correction1 = 1 - std::pow(o.beta1, t);
    const double correction2 = 1 - std::pow(o.beta2, t);
    state.exp_avg.mul_(o.beta1).add_(gradient, 1 - o.beta1);
    state.exp_avg_sq.mul_(o.beta2).addcmul_(gradient, gradient, 1 - o.beta2);
    const at::Tensor denominator =
        (exact_sqrt(state.exp_avg_sq) / std::sqrt(correction2)).add_(o.eps);
    p.addcdiv_(state.exp_avg, denominator, -o.lr / correction1);
  }

  PlainAdamWOptions options_;
  std::vector<State> states_;
};

} // namespace tessera::tests
