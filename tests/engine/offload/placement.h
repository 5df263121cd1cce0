// SPDX-License-Identifier: Apache-2.0
#pragma once
// A training run whose numbers must not depend on where state rests.

#include "engine/twin.h"
#include "support/temporary_folder.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::tests {

/// Layers of one size with something odd at both ends; a norm, a layer that is
/// frozen, and one that gets a gradient in every other step only.
struct RestingNetImpl : torch::nn::Module {
  static constexpr int64_t kWide = 45;

  explicit RestingNetImpl(int64_t width = kWide, int count = 4)
      : first(register_module("first", torch::nn::Linear(7, width))),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        frozen(register_module("frozen", torch::nn::Linear(width, width))),
        seldom(register_module("seldom", torch::nn::Linear(width, width))),
        last(register_module("last", torch::nn::Linear(width, 3))) {
    for (int i = 0; i < count; ++i) {
      layers.push_back(register_module(
          "layer" + std::to_string(i), torch::nn::Linear(width, width)));
    }
    frozen->weight.requires_grad_(false);
    frozen->bias.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& in, bool all) {
    at::Tensor x = norm(first(in));
    for (auto& layer : layers) {
      x = x + torch::tanh(layer(x));
    }
    x = x + frozen(x);
    return last(all ? x + seldom(x) : x);
  }

  torch::nn::Linear first;
  torch::nn::LayerNorm norm;
  torch::nn::Linear frozen;
  torch::nn::Linear seldom;
  torch::nn::Linear last;
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(RestingNet);

inline RestingNet make_resting_net(
    int64_t width = RestingNetImpl::kWide,
    int count = 4) {
  torch::manual_seed(3);
  return RestingNet(width, count);
}

/// Options with small groups and nothing in the log.
inline EngineOptions resting_options(
    std::optional<at::ScalarType> precision,
    const UpdateRule& rule = AdamWOptions{}) {
  EngineOptions options = group_per_layer();
  options.precision.parameters = precision;
  options.sharding.prefetch_depth = 0;
  options.optimizer.rule = rule;
  options.optimizer.parameters = {
      {.pattern = ".*bias", .lr_scale = 0.5, .weight_decay = 0.0}};
  options.loss_scale.initial = 1024;
  options.loss_scale.growth_interval = 2;
  return options;
}

/// Steps of two micro-batches with clipping; the third overflows where losses
/// are scaled. Every rank has batches of its own. @return what can be seen.
inline std::vector<at::Tensor> train_resting(
    Engine& engine,
    RestingNet& net,
    int first_step,
    int steps,
    int rank) {
  std::vector<at::Tensor> seen;
  for (int step = first_step; step < first_step + steps; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      torch::manual_seed(100 * step + 10 * micro + rank);
      at::Tensor loss =
          net->forward(torch::randn({5, 7}), step % 2 == 0).square().mean();
      seen.push_back(loss.detach().to(torch::kDouble));
      if (step == 2 && engine.loss_scale() != 1) {
        loss = loss * std::numeric_limits<float>::infinity();
      }
      engine.backward(loss);
    }
    seen.push_back(
        torch::tensor(engine.clip_grad_norm(0.1).value(), torch::kDouble));
    engine.step();
    seen.push_back(torch::tensor(engine.loss_scale(), torch::kDouble));
  }
  return seen;
}

/// Collective. All parameters.
inline std::map<std::string, at::Tensor> parameters_of(Engine& engine) {
  std::map<std::string, at::Tensor> values;
  engine.for_each_parameter([&](const std::string& name, const at::Tensor& v) {
    values[name] = v.clone();
  });
  return values;
}

inline void expect_same_bits(
    const std::vector<at::Tensor>& got,
    const std::vector<at::Tensor>& want,
    const std::string& label) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(
        torch::equal(got[i], want[i]) || (got[i].isnan().all().item<bool>() &&
                                          want[i].isnan().all().item<bool>()))
        << label << ", number " << i << ": " << got[i].item<double>() << " and "
        << want[i].item<double>();
  }
}

inline void expect_same_bits(
    const std::map<std::string, at::Tensor>& got,
    const std::map<std::string, at::Tensor>& want,
    const std::string& label) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, value] : want) {
    ASSERT_TRUE(value.isfinite().all().item<bool>()) << label << ": " << name;
    EXPECT_TRUE(torch::equal(got.at(name), value))
        << label << ": " << name << " is off by "
        << (got.at(name) - value).abs().max().item<double>();
  }
}

inline int64_t state_bytes(const Engine& engine, MemoryTier tier) {
  return engine.measured_memory(
      tier)[static_cast<size_t>(MemoryPurpose::kOptimizerState)];
}

/// What was planned is what is there, on every tier. (Slots may grow when the
/// real order of use is known.)
inline void expect_planned(const Engine& engine, const std::string& label) {
  for (const MemoryTier tier :
       {MemoryTier::kDevice, MemoryTier::kHost, MemoryTier::kNvme}) {
    for (const MemoryPurpose purpose :
         {MemoryPurpose::kParameters,
          MemoryPurpose::kGradients,
          MemoryPurpose::kOptimizerState,
          MemoryPurpose::kStaging}) {
      const auto i = static_cast<size_t>(purpose);
      EXPECT_EQ(engine.measured_memory(tier)[i], engine.planned_memory(tier)[i])
          << label << ": " << name_of(tier) << " " << name_of(purpose);
    }
  }
}

/// What one training run shows.
struct Outcome {
  std::vector<at::Tensor> seen;
  std::map<std::string, at::Tensor> parameters;
  std::map<std::string, at::Tensor> unwrapped;
};

inline Outcome train(
    World& world,
    const EngineOptions& options,
    const std::string& label,
    const std::function<void(const Engine&)>& look = {},
    RestingNet net = make_resting_net()) {
  auto engine = wrap(net, options);
  expect_planned(engine, label + ", before");
  Outcome run;
  run.seen = train_resting(engine, net, 0, 5, world.rank());
  expect_planned(engine, label + ", behind");
  if (look) {
    look(engine);
  }
  run.parameters = parameters_of(engine);
  engine.unwrap();
  for (const auto& item : net->named_parameters()) {
    run.unwrapped[item.key()] = item.value().detach().clone();
  }
  return run;
}

inline void expect_same_run(
    const Outcome& got,
    const Outcome& want,
    const std::string& label) {
  expect_same_bits(got.seen, want.seen, label);
  expect_same_bits(got.parameters, want.parameters, label);
  expect_same_bits(got.unwrapped, want.unwrapped, label + ", unwrapped");
}

inline std::string text_of(std::optional<at::ScalarType> precision) {
  return precision ? c10::toString(*precision) : "float32";
}

} // namespace tessera::tests
