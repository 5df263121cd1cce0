// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/interception/gradient_hooks.h"

#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace tessera::sharding {

namespace {

class GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
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
  torch::autograd::PostAccumulateGradHook* users_; ///< owned by GradientHooks
};

} // namespace

GradientHooks::GradientHooks(
    const std::vector<at::Tensor>& parameters,
    const std::function<void(size_t)>& on_gradient) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i];
    if (!tensor.requires_grad()) {
      continue;
    }
    auto users = std::move(torch::autograd::impl::post_acc_grad_hooks(tensor));
    torch::autograd::impl::set_post_acc_grad_hooks(
        tensor, std::make_unique<GradientHook>(on_gradient, i, users.get()));
    hooked_.push_back({tensor, std::move(users)});
  }
}

GradientHooks::~GradientHooks() {
  for (Hooked& hooked : hooked_) {
    torch::autograd::impl::set_post_acc_grad_hooks(
        hooked.parameter, std::move(hooked.users));
  }
}

} // namespace tessera::sharding
