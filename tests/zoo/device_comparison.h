// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model on a device held against the same model on the CPU: losses and
// gradients.

#include "tessera/sharding/lazy/move_module.h"
#include "tessera/zoo/models/registry.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera::zoo::device_comparison {

/// 4 key heads for 8 query heads.
inline constexpr const char* kGroupedLlama = R"({"model_type": "llama",
    "architectures": ["LlamaForCausalLM"], "vocab_size": 29, "hidden_size": 32,
    "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 64,
    "initializer_range": 0.3})";
inline constexpr const char* kGpt = R"({"model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"], "vocab_size": 31, "n_embd": 24,
    "n_layer": 3, "n_head": 3, "n_positions": 64, "initializer_range": 0.3})";

/// The same new weights on every device, in evaluation mode.
inline std::shared_ptr<Model> model_on(
    c10::Device device,
    const std::string& config,
    at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(3);
  auto model = from_config(nlohmann::json::parse(config));
  model->to(dtype);
  move_module(*model, device);
  model->eval();
  return model;
}

/// A loss and the gradients of all that is trained, on the CPU.
struct Gradients {
  double loss = 0;
  std::map<std::string, at::Tensor> of;
};

inline Gradients gradients_of(
    torch::nn::Module& model,
    const at::Tensor& loss) {
  model.zero_grad();
  loss.backward();
  Gradients all{loss.item<double>(), {}};
  for (const auto& item : model.named_parameters()) {
    if (item.value().grad().defined()) {
      all.of[item.key()] = item.value().grad().to(at::kCPU, at::kDouble);
    }
  }
  return all;
}

/// Float32 sums in another order: a few 1e-7 of the largest term for each of
/// the sums that a gradient passes, which are some tens; in losses of pairs,
/// terms of both texts cancel.
inline constexpr double kFloat32Tolerance = 5e-5;

inline void expect_close(const Gradients& found, const Gradients& expected) {
  EXPECT_NEAR(
      found.loss, expected.loss, kFloat32Tolerance * std::abs(expected.loss));
  ASSERT_FALSE(expected.of.empty());
  ASSERT_EQ(found.of.size(), expected.of.size());
  double largest = 0;
  for (const auto& [name, gradient] : expected.of) {
    largest = std::max(largest, gradient.abs().max().item<double>());
  }
  for (const auto& [name, gradient] : expected.of) {
    // Some, as those of biases of keys, are nothing but roundings.
    const double own =
        std::max(gradient.abs().max().item<double>(), 1e-2 * largest);
    EXPECT_LT(
        (found.of.at(name) - gradient).abs().max().item<double>(),
        kFloat32Tolerance * own)
        << name;
  }
}

/// The largest difference of two tensors, in units of the largest expected
/// element.
inline double difference_of(
    const at::Tensor& found,
    const at::Tensor& expected) {
  const at::Tensor wanted = expected.to(at::kCPU, at::kDouble);
  return ((found.to(at::kCPU, at::kDouble) - wanted).abs().max() /
          wanted.abs().max())
      .item<double>();
}

} // namespace tessera::zoo::device_comparison
