// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/interception/gradient_hooks.h"

#include "tessera/sharding/interception/gradient_hook.h"

#include <utility>

namespace tessera::sharding {

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
