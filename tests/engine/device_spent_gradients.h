// SPDX-License-Identifier: Apache-2.0
#pragma once
// Training on a device whose backward writes over spent gradients, and training
// whose backward does not: the same bits, in less memory.

#include "runtime/memory/spent_gradients_cases.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/memory/device_memory.h"
#include "tessera/sharding/lazy/move_module.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::tests::device_spent_gradients {

inline void expect_written_over(World& world) {
  EXPECT_TRUE(runtime::reuses_spent_gradients());
  spent_gradients_cases::expect_written_over_with_the_same_bits(
      world.device(), {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf});
}

/// Losses and weights of steps of a net with most of these functions, without
/// operators whose sums have no fixed order, such as attention's backward.
inline std::vector<at::Tensor> train(
    World& world,
    bool reuses,
    std::optional<at::ScalarType> dtype) {
  runtime::reuse_spent_gradients(reuses, world.device().type());
  torch::manual_seed(5);
  torch::nn::Sequential net(
      torch::nn::Linear(24, 48),
      torch::nn::GELU(),
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({48})),
      torch::nn::Linear(48, 48),
      torch::nn::ReLU(),
      torch::nn::Linear(48, 48),
      torch::nn::Tanh(),
      torch::nn::Linear(48, 31),
      torch::nn::LogSoftmax(-1));
  move_module(*net, world.device());
  EngineOptions options;
  options.log_memory = false;
  options.sharding.groups.min_group_numel = 0;
  options.precision.parameters = dtype;
  Engine engine = wrap(net.ptr(), options);
  std::vector<at::Tensor> seen;
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(10 * step + world.rank());
    const at::Tensor x = torch::randn({20, 24}).to(world.device());
    const at::Tensor labels = torch::randint(31, {20}).to(world.device());
    const at::Tensor loss =
        torch::nll_loss(net->forward(x).to(at::kFloat), labels);
    engine.backward(loss);
    engine.step();
    seen.push_back(loss.detach().cpu());
  }
  engine.for_each_parameter(
      [&](const std::string& /*name*/, const at::Tensor& value) {
        seen.push_back(value.cpu().clone());
      });
  spent_gradients_cases::reuse_again(world.device());
  return seen;
}

inline void expect_bits_of_training_without(World& world) {
  for (const auto dtype :
       {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
    const auto with = train(world, true, dtype);
    const auto without = train(world, false, dtype);
    ASSERT_EQ(with.size(), without.size());
    for (size_t i = 0; i < with.size(); ++i) {
      EXPECT_TRUE(torch::equal(with[i], without[i])) << i;
    }
    EXPECT_FALSE(torch::equal(with[0], with[1]));
  }
}

/// Of the loss of a language model: gradients of logits take one matrix of
/// tokens x vocabulary beside the logits, or two.
inline void expect_less_memory(World& world) {
  constexpr int64_t kTokens = 256;
  constexpr int64_t kVocabulary = 16384; // whole units of allocators
  constexpr double kMatrix = kTokens * kVocabulary * sizeof(float);
  const c10::Device device = world.device();
  const auto matrices_at_peak = [&](bool reuses) {
    runtime::reuse_spent_gradients(reuses, device.type());
    const auto options = at::TensorOptions(device);
    const at::Tensor features =
        torch::zeros({kTokens, 4}, options).requires_grad_();
    const at::Tensor weight = torch::zeros({4, kVocabulary}, options);
    const at::Tensor targets =
        torch::zeros({kTokens}, options.dtype(torch::kLong));
    const int64_t before = runtime::live_bytes(device);
    const at::Tensor loss =
        torch::nn::functional::cross_entropy(features.matmul(weight), targets);
    runtime::reset_peak_bytes(device);
    loss.backward();
    const int64_t peak = runtime::peak_bytes(device) - before;
    spent_gradients_cases::reuse_again(device);
    return static_cast<double>(peak) / kMatrix;
  };
  matrices_at_peak(true); // workspaces of libraries
  EXPECT_NEAR(matrices_at_peak(true), 2, 0.15);
  EXPECT_NEAR(matrices_at_peak(false), 3, 0.15);
}

} // namespace tessera::tests::device_spent_gradients
