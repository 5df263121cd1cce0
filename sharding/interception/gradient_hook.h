// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GradientHook` is what autograd calls when it has accumulated the gradient of
// a sharded parameter.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <functional>
#include <utility>

namespace tessera::sharding {

class GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
  /// @param on_gradient is called with `parameter`.
  /// @param users the user's hook, which is called first; may be null. Not
  ///   owned.
  GradientHook(
      std::function<void(size_t)> on_gradient,
      size_t parameter,
      torch::autograd::PostAccumulateGradHook* users)
      : on_gradient_(std::move(on_gradient)),
        parameter_(parameter),
        users_(users) {}

  void operator()(const torch::autograd::Variable& tensor) override {
    if (users_ != nullptr) {
      (*users_)(tensor);
    }
    on_gradient_(parameter_);
  }

 private:
  std::function<void(size_t)> on_gradient_;
  size_t parameter_;
  torch::autograd::PostAccumulateGradHook* users_;
};

/// Whether a GradientHook sees every gradient that autograd accumulates in the
/// tensor: the user has put no other hook in its place.
inline bool has_gradient_hook(const at::Tensor& tensor) {
  return dynamic_cast<GradientHook*>(
             torch::autograd::impl::post_acc_grad_hooks(tensor).get()) !=
         nullptr;
}

} // namespace tessera::sharding
