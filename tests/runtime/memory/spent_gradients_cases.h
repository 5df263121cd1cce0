// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions whose backward writes over its gradient, on any device, with and
// without that.

#include "tessera/runtime/memory/spent_gradients.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tests::spent_gradients_cases {

using Function = std::function<at::Tensor(const at::Tensor&)>;

inline const std::vector<std::pair<std::string, Function>>& functions() {
  using at::Tensor;
  static const std::vector<std::pair<std::string, Function>> kAll = {
      {"log_softmax", [](const Tensor& x) { return x.log_softmax(-1); }},
      {"log_softmax of rows", [](const Tensor& x) { return x.log_softmax(0); }},
      {"softmax", [](const Tensor& x) { return x.softmax(-1); }},
      {"softmax to float",
       [](const Tensor& x) { return x.softmax(-1, torch::kFloat); }},
      {"gelu", [](const Tensor& x) { return torch::gelu(x); }},
      {"gelu by tanh", [](const Tensor& x) { return torch::gelu(x, "tanh"); }},
      {"relu", [](const Tensor& x) { return torch::relu(x); }},
      {"tanh", [](const Tensor& x) { return torch::tanh(x); }},
      {"sigmoid", [](const Tensor& x) { return torch::sigmoid(x); }}};
  return kAll;
}

/// The gradient of x where it arrives at and leaves the function's node.
struct Passage {
  const void* arrives = nullptr;
  const void* leaves = nullptr;
  at::Tensor gradient; ///< that of x
};

inline Passage pass(
    const Function& function,
    torch::ScalarType dtype,
    c10::Device device) {
  torch::manual_seed(3);
  Passage passage;
  const at::Tensor leaf =
      torch::randn({37, 129}).to(device, dtype).requires_grad_();
  const at::Tensor weights = torch::randn({37, 129}).to(device);
  const at::Tensor x = leaf * 3;
  // Hooks that keep the address only: one that keeps the tensor holds it.
  x.register_hook(
      [&](const at::Tensor& g) { passage.leaves = g.const_data_ptr(); });
  const at::Tensor y = function(x);
  y.register_hook(
      [&](const at::Tensor& g) { passage.arrives = g.const_data_ptr(); });
  (y * weights.to(y.scalar_type())).sum().backward();
  passage.gradient = leaf.grad();
  return passage;
}

/// As init() leaves it.
inline void reuse_again(c10::Device device) {
  runtime::reuse_spent_gradients(true, device.type());
}

inline void expect_written_over_with_the_same_bits(
    c10::Device device,
    const std::vector<at::ScalarType>& dtypes) {
  for (const auto dtype : dtypes) {
    for (const auto& [name, function] : functions()) {
      SCOPED_TRACE(name + ", " + toString(dtype));
      reuse_again(device);
      const Passage over = pass(function, dtype, device);
      runtime::reuse_spent_gradients(false, device.type());
      const Passage apart = pass(function, dtype, device);
      // Behind a cast, memory that is free again may have the same address.
      if (name != "softmax to float" || dtype == torch::kFloat) {
        EXPECT_EQ(over.arrives, over.leaves);
        EXPECT_NE(apart.arrives, apart.leaves);
      }
      EXPECT_TRUE(torch::equal(over.gradient, apart.gradient));
    }
  }
  reuse_again(device);
}

} // namespace tessera::tests::spent_gradients_cases
