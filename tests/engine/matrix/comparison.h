// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Comparison` trains in one combination of what the engine offers, against
// plain LibTorch: losses, gradients, weights and memory.

#include "engine/device_budget.h"
#include "engine/matrix/cases.h"
#include "engine/matrix/matrix_net.h"
#include "engine/matrix/reference.h"
#include "engine/parity.h"
#include "tessera/engine/engine.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <optional>
#include <string>

namespace tessera::tests::matrix {

inline constexpr int kMatrixSteps = 4;
inline constexpr int kOverflowStep = 1;
inline constexpr double kLearningRate = 3e-3;
inline constexpr double kEps = 1e-3;

/// @param probe a net for the plan of a budget.
inline EngineOptions engine_options(const Case& which, MatrixNet probe) {
  EngineOptions options;
  options.log_memory = false;
  options.optimizer.lr = kLearningRate;
  options.optimizer.rule = AdamWOptions{.eps = kEps};
  options.loss_scale.initial = 1024;
  options.sharding.groups.min_group_numel = 64;
  if (which.dtype() != at::kFloat) {
    options.precision.parameters = which.dtype();
  }
  if (which.is(Case::kAccumulation, "3 micro-batches kept whole")) {
    options.sharding.accumulation = GradientAccumulation::kKeepWhole;
  }
  if (which.is(Case::kResidency, "budget")) {
    int64_t bytes = 0;
    for (const at::Tensor& parameter : probe->parameters()) {
      bytes += parameter.numel() * c10::elementSize(which.dtype()) + 256;
    }
    options.memory.device_bytes =
        device_budget(wrap(probe, options), bytes * 4 / 5);
  } else if (which.is(Case::kResidency, "hybrid")) {
    options.sharding.shard_ranks = which.world() == 4 ? 2 : 1;
  } else {
    options.sharding.zero_stage =
        static_cast<int>(which.at[Case::kResidency]) + 1;
  }
  return options;
}

inline at::Tensor loss_of(MatrixNet& net, int step, int micro_batch, int rank) {
  torch::manual_seed(100 + 100 * rank + 10 * step + micro_batch);
  const at::Tensor tokens =
      torch::randint(kVocabulary, {3, 8}).to(net->head->weight.device());
  return torch::nn::functional::cross_entropy(
      net(tokens.narrow(1, 0, 7)), tokens.narrow(1, 1, 7).reshape({-1}));
}

/// Where a comparison runs, and how close results have to be.
struct ComparisonOptions {
  /// Moves a net that was made on the CPU; none: it stays there.
  std::function<void(torch::nn::Module&)> move;
  /// Of losses and gradients, in proportion to the largest value.
  double tolerance = 0;
  /// Of weights, see [Note: tolerances by motion].
  double fraction = 0;
};

/// Trains a wrapped net and a plain one side by side.
class Comparison {
 public:
  Comparison(
      const Case& which,
      const World& world,
      const ComparisonOptions& comparison)
      : which_(which),
        world_(world),
        comparison_(comparison),
        wrapped_(make(std::nullopt)),
        options_(engine_options(which, make(std::nullopt))),
        reference_(make(which.dtype()), reference_options()),
        engine_(wrap(wrapped_, options_)) {}

  void run() {
    for (int step = 0; step < kMatrixSteps; ++step) {
      const std::string now = which_.name() + ", step " + std::to_string(step);
      for (int micro = 0; micro < which_.micro_batches(); ++micro) {
        train_on_micro_batch(step, micro, now);
      }
      reference_.finish_gradients();
      const bool overflow = overflows(step);
      if (!overflow) {
        compare_gradients(now);
      }
      const double max_norm = which_.is(Case::kClipping, "clipped") ? 0.05 : 0;
      reference_.step(max_norm, overflow);
      if (max_norm > 0) {
        engine_.clip_grad_norm(max_norm);
      }
      EXPECT_EQ(engine_.step(), !overflow) << now;
      EXPECT_EQ(engine_.loss_scale(), reference_.scale()) << now;
      compare_memory(now);
      if (::testing::Test::HasFailure()) {
        return;
      }
    }
    compare_weights();
  }

 private:
  ReferenceOptions reference_options() const {
    return {
        which_.dtype(),
        kLearningRate,
        kEps,
        options_.loss_scale,
        world_.size(),
        static_cast<size_t>(options_.sharding.shard_ranks),
        reduces_once(options_)};
  }

  MatrixNet make(std::optional<at::ScalarType> written_out) const {
    torch::manual_seed(7);
    MatrixNet net(MatrixOptions{
        which_[Case::kVariant],
        !written_out && which_.is(Case::kCheckpointing, "checkpointed blocks"),
        written_out});
    if (comparison_.move) {
      comparison_.move(*net);
      if (which_.is(Case::kVariant, "tied")) {
        net->head->weight = net->embedding->weight;
      }
    }
    return net;
  }

  bool overflows(int step) const {
    return which_.at[Case::kOverflow] != 0 && step == kOverflowStep;
  }

  void train_on_micro_batch(int step, int micro, const std::string& now) {
    const auto share = [&](MatrixNet& net, int rank) {
      return loss_of(net, step, micro, rank) / which_.micro_batches();
    };
    const at::Tensor expected = reference_.backward(world_.rank(), share);
    auto loss = share(wrapped_, world_.rank());
    expect_same(
        loss.detach(), expected, comparison_.tolerance, 1, now + ": loss");
    if (overflows(step) && world_.rank() == world_.size() - 1) {
      loss = loss * std::numeric_limits<float>::infinity();
    }
    engine_.backward(loss);
  }

  void compare_gradients(const std::string& now) {
    const auto parameters = wrapped_->named_parameters();
    for (size_t i = 0; i < reference_.names().size(); ++i) {
      const std::string& name = reference_.names()[i];
      expect_same(
          engine_.grad(parameters[name]),
          reference_.gradient(i),
          comparison_.tolerance,
          0.1,
          now + ": gradient of " + name);
    }
  }

  /// What was computed before the first step is what is allocated after.
  void compare_memory(const std::string& now) {
    const auto planned =
        static_cast<double>(total_bytes(engine_.planned_memory()));
    const auto measured =
        static_cast<double>(total_bytes(engine_.measured_memory()));
    EXPECT_NEAR(measured, planned, 0.03 * planned) << now;
  }

  void compare_weights() {
    Weights expected;
    Weights start;
    for (size_t i = 0; i < reference_.names().size(); ++i) {
      expected[reference_.names()[i]] = reference_.master(i).detach();
      start[reference_.names()[i]] = reference_.start(i);
    }
    const double fraction = comparison_.fraction;
    engine_.for_each_parameter(
        [&](const std::string& name, const at::Tensor& value) {
          expect_close_by_motion(
              expected_value(name, start),
              expected_value(name, expected),
              value,
              fraction,
              which_.name() + ": " + name);
        });
    engine_.unwrap();
    for (const auto& item : wrapped_->named_parameters()) {
      expect_close_by_motion(
          expected_value(item.key(), start),
          expected_value(item.key(), expected),
          item.value(),
          fraction,
          which_.name() + ": unwrapped " + item.key());
    }
  }

  /// Frozen parameters have no master weights: what remains of them is what
  /// operators saw.
  at::Tensor expected_value(const std::string& name, const Weights& expected)
      const {
    const at::Tensor& master = expected.at(name);
    const bool is_norm = name.find("norm") != std::string::npos;
    return trained(name) || is_norm
               ? master
               : master.to(which_.dtype()).to(torch::kFloat);
  }

  bool trained(const std::string& name) const {
    return wrapped_->named_parameters()[name].requires_grad();
  }

  Case which_;
  const World& world_;
  ComparisonOptions comparison_;
  MatrixNet wrapped_;
  EngineOptions options_;
  Reference reference_;
  Engine engine_;
};

} // namespace tessera::tests::matrix
