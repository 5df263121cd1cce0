// SPDX-License-Identifier: Apache-2.0
#pragma once
// Trains a plain copy of a model with torch::optim::AdamW and a wrapped copy
// with the engine, side by side, and expects the same numbers.

#include "tessera/engine/engine.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::tests {

/// [Note: parity tolerances] Every rank gets the same batch, so the average of
/// the gradients is an average of equal values. In a world of one nothing is
/// summed, and of two ranks both the sum and the division by two are exact:
/// those runs must be equal to the last bit. With three the sum and the
/// division round, and with four 3g does: each gradient is off by a few 1e-7 of
/// itself. Ten AdamW steps feed that back into the weights, where it grows with
/// the model's own sensitivity; 1e-4 of the largest value leaves room for that
/// and is far below one AdamW step. AdamW divides by |g|: where a gradient is
/// zero but for rounding (a bias before BatchNorm, the bias of an attention
/// key), the sign of the noise would move the weight by a whole step. Those
/// runs therefore use eps = 1e-3, which keeps noise as small as it came.
struct ParityOptions {
  int64_t steps = 10;
  int64_t micro_batches = 1;
  double max_norm = 0; ///< above 0: clip_grad_norm
  double lr = 3e-3;
  /// Of the largest value; 0 = bit-equal.
  double tolerance = 0;
  double eps = 1e-8;
  /// Every rank takes its own part of the batch.
  bool divide_batch = false;
  EngineOptions engine;
};

inline ParityOptions parity_options(
    const World& world,
    int64_t min_group_numel) {
  ParityOptions options;
  if (world.size() > 2) {
    options.tolerance = 1e-4;
    options.eps = 1e-3;
  }
  options.engine.sharding.groups.min_group_numel = min_group_numel;
  options.engine.log_memory = false;
  return options;
}

/// Expects |got - want| <= tolerance * max(scale, max|want|), or equal bits.
inline void expect_same(
    const at::Tensor& got,
    const at::Tensor& want,
    double tolerance,
    double scale,
    const std::string& what) {
  ASSERT_EQ(got.defined(), want.defined()) << what;
  if (!want.defined() || want.numel() == 0) {
    return;
  }
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  ASSERT_EQ(got.scalar_type(), want.scalar_type()) << what;
  const double off = (got - want).abs().max().item<double>();
  if (tolerance == 0) {
    EXPECT_TRUE(torch::equal(got, want)) << what << " is off by " << off;
    return;
  }
  const double size = std::max(scale, want.abs().max().item<double>());
  // Written so that NaN fails.
  EXPECT_TRUE(off <= tolerance * size)
      << what << " is off by " << off << " at " << size;
}

inline double largest_gradient(torch::nn::Module& module) {
  double largest = 0;
  for (const auto& parameter : module.parameters()) {
    if (parameter.grad().defined() && parameter.numel() > 0) {
      largest = std::max(largest, parameter.grad().abs().max().item<double>());
    }
  }
  return largest;
}

/// Compares every gradient. Collective.
inline void expect_same_gradients(
    Engine& engine,
    torch::nn::Module& wrapped,
    torch::nn::Module& plain,
    double tolerance,
    const std::string& what) {
  const double scale = largest_gradient(plain);
  const auto named = wrapped.named_parameters();
  for (const auto& item : plain.named_parameters()) {
    expect_same(
        engine.grad(named[item.key()]),
        item.value().grad(),
        tolerance,
        scale,
        what + ": gradient of " + item.key());
  }
}

/// Compares every parameter. Collective.
inline void expect_same_parameters(
    Engine& engine,
    torch::nn::Module& plain,
    double tolerance,
    const std::string& what) {
  const auto expected = plain.named_parameters();
  size_t visited = 0;
  engine.for_each_parameter(
      [&](const std::string& name, const at::Tensor& value) {
        ++visited;
        expect_same(
            value, expected[name].detach(), tolerance, 1, what + ": " + name);
      });
  EXPECT_EQ(visited, expected.size()) << what;
}

/// Unwraps, then compares parameters and buffers as any code would read them.
inline void expect_same_after_unwrap(
    Engine& engine,
    torch::nn::Module& wrapped,
    torch::nn::Module& plain,
    double tolerance,
    const std::string& what) {
  engine.unwrap();
  const c10::NoGradGuard no_grad;
  const auto parameters = wrapped.named_parameters();
  for (const auto& item : plain.named_parameters()) {
    expect_same(
        parameters[item.key()],
        item.value(),
        tolerance,
        1,
        what + ": unwrapped " + item.key());
  }
  const auto buffers = wrapped.named_buffers();
  for (const auto& item : plain.named_buffers()) {
    expect_same(
        buffers[item.key()],
        item.value(),
        tolerance,
        1,
        what + ": buffer " + item.key());
  }
}

inline OptimizerOptions adamw_options(const ParityOptions& options) {
  OptimizerOptions adamw;
  adamw.lr = options.lr;
  adamw.rule = AdamWOptions{.eps = options.eps};
  return adamw;
}

inline torch::optim::AdamW plain_adamw(
    torch::nn::Module& module,
    const ParityOptions& options) {
  std::vector<torch::Tensor> trainable;
  for (const auto& parameter : module.parameters()) {
    if (parameter.requires_grad()) {
      trainable.push_back(parameter);
    }
  }
  return torch::optim::AdamW(
      trainable,
      torch::optim::AdamWOptions(options.lr)
          .eps(options.eps)
          .weight_decay(0.01));
}

/// What is trained: `make` returns a fresh module holder, `loss` the loss of a
/// batch, which both copies get with the same seed.
/// `part` of `parts` is the part of the batch to use.
template <typename Model>
struct Subject {
  std::function<Model()> make;
  std::function<torch::Tensor(Model&, int64_t part, int64_t parts)> loss;
};

/// The whole comparison; `what` heads the messages.
template <typename Model>
void expect_parity(
    const World& world,
    const Subject<Model>& subject,
    ParityOptions options,
    const std::string& what) {
  torch::manual_seed(1);
  Model plain = subject.make();
  torch::manual_seed(1);
  Model wrapped = subject.make();
  auto adamw = plain_adamw(*plain, options);
  options.engine.optimizer = adamw_options(options);
  auto engine = wrap(wrapped, options.engine);
  const int64_t part = options.divide_batch ? world.rank() : 0;
  const int64_t parts = options.divide_batch ? world.size() : 1;
  for (int64_t step = 0; step < options.steps; ++step) {
    const std::string now = what + ", step " + std::to_string(step);
    adamw.zero_grad();
    for (int64_t micro = 0; micro < options.micro_batches; ++micro) {
      const auto seed = 100 + step * options.micro_batches + micro;
      torch::manual_seed(seed);
      auto expected = subject.loss(plain, 0, 1) / options.micro_batches;
      expected.backward();
      torch::manual_seed(seed);
      auto loss = subject.loss(wrapped, part, parts) / options.micro_batches;
      engine.backward(loss);
      if (parts == 1) {
        expect_same(
            loss.detach(), expected.detach(), options.tolerance, 1, now);
      }
    }
    if (step == 0 || step + 1 == options.steps) {
      expect_same_gradients(engine, *wrapped, *plain, options.tolerance, now);
    }
    if (options.max_norm > 0) {
      const double expected = torch::nn::utils::clip_grad_norm_(
          plain->parameters(), options.max_norm);
      EXPECT_NEAR(
          engine.clip_grad_norm(options.max_norm), expected, 1e-5 * expected)
          << now;
    }
    adamw.step();
    engine.step();
    if (::testing::Test::HasFailure()) {
      return; // what follows would only repeat it
    }
  }
  expect_same_parameters(engine, *plain, options.tolerance, what);
  expect_same_after_unwrap(engine, *wrapped, *plain, options.tolerance, what);
}

} // namespace tessera::tests
