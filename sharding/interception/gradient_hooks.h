// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GradientHooks` calls a function whenever autograd has accumulated the
// gradient of a parameter.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace tessera::sharding {

/// Takes the place of hooks that the user has installed, which it calls first,
/// and gives it back when it is destroyed.
class GradientHooks {
 public:
  /// @param parameters those that do not require a gradient get no hook.
  /// @param on_gradient is called with the parameter's index.
  GradientHooks(
      const std::vector<at::Tensor>& parameters,
      const std::function<void(size_t)>& on_gradient);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  struct Hooked {
    at::Tensor parameter;
    /// That ours replaced; may be null.
    std::unique_ptr<torch::autograd::PostAccumulateGradHook> users;
  };
  std::vector<Hooked> hooked_;
};

} // namespace tessera::sharding
