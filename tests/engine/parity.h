// SPDX-License-Identifier: Apache-2.0
#pragma once
// Trains plain copies of a model with AdamW, one for every rank, and a wrapped
// copy with the engine, side by side, and expects the same numbers.

#include "engine/plain_ranks.h"
#include "support/motion.h"
#include "support/plain_adamw.h"
#include "tessera/engine/engine.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::tests {

/// [Note: parity tolerances] Every rank takes its own part of a batch. The
/// plain run has a copy of the model for every rank and averages gradients in
/// the order of the ranks, so that runs are equal to the last bit, however many
/// ranks there are. Where the plain run sees the whole batch at once the sums
/// round otherwise: each gradient is off by a few 1e-7 of itself, and the
/// weights, in the end, by a fraction of their motion. AdamW divides by |g|:
/// where a gradient is zero but for rounding (a bias before BatchNorm, the bias
/// of an attention key), the sign of the noise would move the weight by a whole
/// step. Those runs use eps = 1e-3, which keeps noise as small as it came.
struct ParityOptions {
  int64_t steps = 10;
  int64_t micro_batches = 1;
  double max_norm = 0; ///< above 0: clip_grad_norm
  double lr = 3e-3;
  /// Of losses and gradients, by their largest value, and of weights, by their
  /// motion; 0 = bit-equal.
  double tolerance = 0;
  double eps = 1e-8;
  /// The plain run is one model that sees the whole batch at once.
  bool plain_sees_full_batch = false;
  EngineOptions engine;
};

inline ParityOptions parity_options(
    const World& /*world*/,
    int64_t min_group_numel) {
  ParityOptions options;
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
    const std::string& label) {
  ASSERT_EQ(got.defined(), want.defined()) << label;
  if (!want.defined() || want.numel() == 0) {
    return;
  }
  ASSERT_EQ(got.sizes(), want.sizes()) << label;
  ASSERT_EQ(got.scalar_type(), want.scalar_type()) << label;
  const double off = (got - want).abs().max().item<double>();
  if (tolerance == 0) {
    EXPECT_TRUE(torch::equal(got, want)) << label << " is off by " << off;
    return;
  }
  const double size = std::max(scale, want.abs().max().item<double>());
  // Written so that NaN fails.
  EXPECT_TRUE(off <= tolerance * size)
      << label << " is off by " << off << " at " << size;
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
    const std::string& label) {
  const double scale = largest_gradient(plain);
  const auto named = wrapped.named_parameters();
  for (const auto& item : plain.named_parameters()) {
    expect_same(
        engine.grad(named[item.key()]),
        item.value().grad(),
        tolerance,
        scale,
        label + ": gradient of " + item.key());
  }
}

/// Parameters by name.
using Weights = std::map<std::string, at::Tensor>;

inline Weights weights_of(const torch::nn::Module& module) {
  Weights weights;
  for (const auto& item : module.named_parameters()) {
    weights[item.key()] = item.value().detach().clone();
  }
  return weights;
}

/// Compares every parameter. Collective.
/// @param start before training.
/// @param fraction see expect_close_by_motion().
inline void expect_same_parameters(
    Engine& engine,
    torch::nn::Module& plain,
    const Weights& start,
    double fraction,
    const std::string& label) {
  const auto expected = plain.named_parameters();
  size_t visited = 0;
  engine.for_each_parameter([&](const std::string& name,
                                const at::Tensor& value) {
    ++visited;
    expect_close_by_motion(
        start.at(name), expected[name], value, fraction, label + ": " + name);
  });
  EXPECT_EQ(visited, expected.size()) << label;
}

/// Unwraps, then compares parameters and buffers as any code would read them.
/// @param buffers_of whose buffers they are to be: this rank's copy.
inline void expect_same_after_unwrap(
    Engine& engine,
    torch::nn::Module& wrapped,
    torch::nn::Module& plain,
    const torch::nn::Module& buffers_of,
    const Weights& start,
    double fraction,
    const std::string& label) {
  engine.unwrap();
  const c10::NoGradGuard no_grad;
  const auto parameters = wrapped.named_parameters();
  for (const auto& item : plain.named_parameters()) {
    expect_close_by_motion(
        start.at(item.key()),
        item.value(),
        parameters[item.key()],
        fraction,
        label + ": unwrapped " + item.key());
  }
  const auto buffers = wrapped.named_buffers();
  for (const auto& item : buffers_of.named_buffers()) {
    expect_same(
        buffers[item.key()],
        item.value(),
        fraction,
        1,
        label + ": buffer " + item.key());
  }
}

inline OptimizerOptions adamw_options(const ParityOptions& options) {
  OptimizerOptions adamw;
  adamw.lr = options.lr;
  adamw.rule = AdamWOptions{.eps = options.eps};
  return adamw;
}

inline std::vector<at::Tensor> trainable(const torch::nn::Module& module) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.requires_grad()) {
      result.push_back(parameter);
    }
  }
  return result;
}

inline PlainAdamW plain_adamw(
    const torch::nn::Module& module,
    const ParityOptions& options) {
  return {
      trainable(module),
      {.lr = options.lr, .eps = options.eps, .weight_decay = 0.01}};
}

/// Whether the engine adds up the gradients of micro-batches before it reduces
/// their sum.
inline bool reduces_once(const EngineOptions& options) {
  return options.sharding.accumulation.value_or(
             options.sharding.zero_stage == 1
                 ? GradientAccumulation::kKeepWhole
                 : GradientAccumulation::kReduceEachBackward) ==
         GradientAccumulation::kKeepWhole;
}

/// What is trained: `make` returns a fresh module holder, `loss` the loss of
/// part `part` of `parts` of a batch.
template <typename Model>
struct Subject {
  std::function<Model()> make;
  std::function<torch::Tensor(Model&, int64_t part, int64_t parts)> loss;
  /// Where the plain copies are made in another way.
  std::function<Model()> make_plain = {};

  /// A copy for each rank of `options`' layout.
  PlainRanks<Model> make_plain_ranks(
      int ranks,
      const EngineOptions& options = {}) const {
    return {
        make_plain ? make_plain : make,
        ranks,
        /*seed=*/1,
        reduces_once(options),
        static_cast<size_t>(options.sharding.shard_ranks)};
  }
};

/// The whole comparison; `label` heads the messages.
template <typename Model>
void expect_parity(
    const World& world,
    const Subject<Model>& subject,
    ParityOptions options,
    const std::string& label) {
  const bool full = options.plain_sees_full_batch;
  auto plain =
      subject.make_plain_ranks(full ? 1 : world.size(), options.engine);
  torch::manual_seed(1);
  Model wrapped = subject.make();
  const Weights start = weights_of(*plain.model());
  auto adamw = plain_adamw(*plain.model(), options);
  options.engine.optimizer = adamw_options(options);
  auto engine = wrap(wrapped, options.engine);
  for (int64_t step = 0; step < options.steps; ++step) {
    const std::string now = label + ", step " + std::to_string(step);
    for (int64_t micro = 0; micro < options.micro_batches; ++micro) {
      const auto seed = 100 + step * options.micro_batches + micro;
      const auto loss_of = [&](Model& model, int64_t part, int64_t parts) {
        return subject.loss(model, part, parts) / options.micro_batches;
      };
      const at::Tensor expected = plain.backward(
          seed, full ? 0 : world.rank(), [&](Model& model, int rank) {
            return loss_of(model, rank, plain.ranks());
          });
      torch::manual_seed(seed);
      auto loss = loss_of(wrapped, world.rank(), world.size());
      engine.backward(loss);
      if (!full) {
        expect_same(loss.detach(), expected, options.tolerance, 1, now);
      }
    }
    plain.finish_gradients();
    if (step == 0 || step + 1 == options.steps) {
      expect_same_gradients(
          engine, *wrapped, *plain.model(), options.tolerance, now);
    }
    if (options.max_norm > 0) {
      std::vector<at::Tensor> gradients;
      for (const at::Tensor& parameter : plain.model()->parameters()) {
        gradients.push_back(parameter.grad());
      }
      const double expected = clip_plain_gradients(gradients, options.max_norm);
      EXPECT_NEAR(
          engine.clip_grad_norm(options.max_norm),
          expected,
          std::max(options.tolerance, 1e-12) * expected)
          << now;
    }
    adamw.step();
    plain.follow();
    engine.step();
    if (::testing::Test::HasFailure()) {
      return; // what follows would only repeat it
    }
  }
  expect_same_parameters(
      engine, *plain.model(), start, options.tolerance, label);
  expect_same_after_unwrap(
      engine,
      *wrapped,
      *plain.model(),
      *plain.of(full ? 0 : world.rank()),
      start,
      options.tolerance,
      label);
}

} // namespace tessera::tests
