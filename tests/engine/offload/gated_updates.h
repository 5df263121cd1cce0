// SPDX-License-Identifier: Apache-2.0
#pragma once
// An optimizer whose updates beside the step wait until a test lets them go on,
// and what must hold of a forward while they do.

#include "engine/twin.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/optim/elementwise_optimizer.h"
#include "tessera/sharding/lazy/move_module.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <condition_variable>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace tessera::tests {

/// Where the updates of groups wait. It is open at first.
class UpdateGate {
 public:
  static UpdateGate& instance() {
    static UpdateGate gate;
    return gate;
  }

  /// Lets the updates of the groups before `groups` through, others wait.
  void let(size_t groups) {
    const std::lock_guard lock(mutex_);
    groups_ = groups;
    changed_.notify_all();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    groups_ = 0;
    arrived_ = 0;
    passed_ = 0;
  }
  void open() {
    let(std::numeric_limits<size_t>::max());
  }
  /// The update of this group throws.
  void fail_at(size_t group) {
    const std::lock_guard lock(mutex_);
    failing_ = group;
  }

  /// Called by the update of a group.
  void pass(size_t group) {
    std::unique_lock lock(mutex_);
    if (failing_ == group) {
      throw std::runtime_error("this update fails");
    }
    ++arrived_;
    changed_.notify_all();
    if (!changed_.wait_for(lock, kLimit, [&] { return group < groups_; })) {
      is_late_ = true;
      groups_ = std::numeric_limits<size_t>::max();
    }
    ++passed_;
  }

  /// Updates since close() that have come here, and that were let through.
  size_t arrived() {
    const std::lock_guard lock(mutex_);
    return arrived_;
  }
  size_t passed() {
    const std::lock_guard lock(mutex_);
    return passed_;
  }
  /// Blocks until that many have come here.
  void wait_for_arrivals(size_t updates) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(
        changed_.wait_for(lock, kLimit, [&] { return arrived_ >= updates; }));
  }
  /// Whether an update was never let through.
  bool is_late() {
    const std::lock_guard lock(mutex_);
    return is_late_;
  }

 private:
  /// Long enough for any machine; it passes only if a test fails.
  static constexpr std::chrono::seconds kLimit{10};

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t groups_ = std::numeric_limits<size_t>::max();
  size_t arrived_ = 0;
  size_t passed_ = 0;
  std::optional<size_t> failing_;
  bool is_late_ = false;
};

/// Lion, at the gate.
struct GatedOptions {};

class GatedMethod final : public engine::ElementwiseMethod {
 public:
  using ElementwiseMethod::ElementwiseMethod;

  std::optional<offload::StateUpdate> prepare(
      const sharding::Page& page,
      const engine::StepInput& input) override {
    auto update = ElementwiseMethod::prepare(page, input);
    if (update) {
      const auto g = static_cast<size_t>(page.number());
      update->run = [g, run = update->run](
                        const offload::ShardTensors& tensors,
                        const offload::ShardTensors* before) {
        UpdateGate::instance().pass(g);
        run(tensors, before);
      };
    }
    return update;
  }
};

class GatedOptimizer final : public engine::OptimizerWith<GatedOptions> {
 public:
  const char* name() const override {
    return "Gated";
  }
  const char* key() const override {
    return nullptr;
  }
  bool updates_elements_alone() const override {
    return true;
  }

 private:
  void fields(runtime::OptionFields& /*fields*/, GatedOptions& /*options*/)
      const override {}
  int moments(const GatedOptions& /*options*/) const override {
    return 1;
  }
  void add(
      engine::UpdateContext& context,
      const std::vector<engine::OptimizedParameter*>& parameters,
      const GatedOptions& /*options*/,
      std::vector<std::unique_ptr<engine::UpdateMethod>>& methods)
      const override {
    methods.push_back(std::make_unique<GatedMethod>(
        context,
        parameters,
        std::vector<std::string>{"exp_avg"},
        [](const engine::OptimizedParameter& parameter,
           const engine::StepInput& input) {
          runtime::LionStep step;
          step.lr = input.lr_of(parameter);
          step.beta1 = 0.9;
          step.beta2 = 0.99;
          step.grad_scale = parameter.grad_scale;
          return step;
        }));
  }
};

inline const engine::Optimizer& optimizer_of(
    std::type_identity<GatedOptions> /*options*/) {
  static const GatedOptimizer optimizer;
  return optimizer;
}

namespace gated_updates {

inline constexpr size_t kLayers = 4;
inline constexpr int64_t kWidth = 16;

/// Layers, each a group of its own, whose state is updated by the CPU.
struct Training {
  Training(World& world, EngineOptions options)
      : rank(world.rank()), net(make_net(world)) {
    options.log_memory = false;
    options.optimizer.lr = 1e-2;
    options.optimizer.rule = GatedOptions{};
    options.sharding.groups.min_group_numel = 0;
    options.placement.optimizer = MemoryTier::kHost;
    options.offload.ratio = 1;
    engine.emplace(wrap(net, options));
  }
  ~Training() {
    UpdateGate::instance().open(); // the engine waits for the one that began
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  static torch::nn::Sequential make_net(World& world) {
    torch::manual_seed(5);
    torch::nn::Sequential net;
    for (size_t i = 0; i < kLayers; ++i) {
      net->push_back(torch::nn::Linear(kWidth, kWidth));
    }
    move_module(*net, world.device());
    return net;
  }
  at::Tensor weight(size_t layer) const {
    return net->ptr(layer)->as<torch::nn::Linear>()->weight;
  }
  at::Tensor input(int step) const {
    torch::manual_seed(100 * step + rank);
    return torch::randn({4, kWidth}).to(weight(0).device());
  }
  at::Tensor layer(size_t i, const at::Tensor& x) const {
    return net->ptr(i)->as<torch::nn::Linear>()->forward(
        x.to(weight(i).dtype()));
  }
  /// All of it.
  at::Tensor forward(int step) const {
    at::Tensor x = input(step);
    for (size_t i = 0; i < kLayers; ++i) {
      x = layer(i, x);
    }
    return x;
  }
  void step(const at::Tensor& result) {
    engine->backward(result.square().mean());
    engine->step();
  }
  std::map<std::string, at::Tensor> values() {
    std::map<std::string, at::Tensor> all;
    engine->for_each_parameter(
        [&](const std::string& name, const at::Tensor& value) {
          all[name] = value.cpu();
        });
    return all;
  }

  int rank;
  torch::nn::Sequential net;
  std::optional<Engine> engine;
};

inline void expect_equal(
    const std::map<std::string, at::Tensor>& got,
    const std::map<std::string, at::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, value] : expected) {
    EXPECT_TRUE(torch::equal(got.at(name), value)) << name;
  }
}

/// After `steps` steps without overlap.
inline std::map<std::string, at::Tensor> serial_values(
    World& world,
    EngineOptions options,
    int steps) {
  options.optimizer.overlap = UpdateOverlap::kOff;
  Training training(world, options);
  for (int step = 0; step < steps; ++step) {
    training.step(training.forward(step));
  }
  return training.values();
}

/// step() returns before any update has ended, and each layer of the next
/// forward waits for the update of its own group and no other.
inline void expect_updates_during_forward(
    World& world,
    const EngineOptions& options) {
  constexpr int kSteps = 4;
  UpdateGate& gate = UpdateGate::instance();
  Training training(world, options);
  for (int step = 0; step < kSteps; ++step) {
    at::Tensor x = training.input(step);
    for (size_t i = 0; i < kLayers; ++i) {
      if (step > 0) {
        gate.let(i + 1);
      }
      x = training.layer(i, x);
      if (step > 0) {
        EXPECT_EQ(gate.passed(), i + 1) << "step " << step << ", layer " << i;
      }
    }
    gate.close();
    training.step(x);
    EXPECT_EQ(gate.passed(), 0) << "step " << step;
  }
  gate.open();
  EXPECT_FALSE(gate.is_late()) << "something waited for all updates";
  expect_equal(training.values(), serial_values(world, options, kSteps));
}

/// What reads weights between two steps gets those after the updates, or an
/// error if it passes by all operators.
/// @param options of groups that are not paged.
inline void expect_readers_wait(World& world, const EngineOptions& options) {
  using Read = std::map<std::string, at::Tensor> (*)(Training&);
  const Read reads[] = {
      [](Training& training) { return training.values(); },
      [](Training& training) {
        const auto scope = training.engine->gather();
        std::map<std::string, at::Tensor> values;
        for (const auto& item : training.net->named_parameters()) {
          values[item.key()] = item.value().detach().cpu();
        }
        return values;
      },
      [](Training& training) {
        const torch::NoGradGuard no_grad;
        std::map<std::string, at::Tensor> values;
        for (const auto& item : training.net->named_parameters()) {
          values[item.key()] = item.value().cpu();
        }
        return values;
      },
      [](Training& training) {
        std::map<std::string, at::Tensor> values;
        for (const auto& item : training.net->named_parameters()) {
          // As state_dict() and a writer of files that knows no operators.
          const at::Tensor view = item.value().detach();
          (void)view.data_ptr();
          values[item.key()] = view.cpu();
        }
        return values;
      },
      [](Training& training) {
        training.engine->unwrap();
        std::map<std::string, at::Tensor> values;
        for (const auto& item : training.net->named_parameters()) {
          values[item.key()] = item.value().detach().cpu();
        }
        return values;
      }};
  const auto expected = serial_values(world, options, 2);
  UpdateGate& gate = UpdateGate::instance();
  for (const Read read : reads) {
    Training training(world, options);
    training.step(training.forward(0));
    const at::Tensor result = training.forward(1);
    (void)training.weight(0).data_ptr(); // forward has waited for its update
    gate.close();
    training.step(result);
    for (size_t i = 0; i < kLayers; ++i) {
      expect_throws(
          [&] { (void)training.weight(i).data_ptr(); },
          {"may be under update", "optimizer.overlap", "gather()"});
    }
    std::thread opener([&] {
      gate.wait_for_arrivals(1);
      // A reader that does not wait has read the old weights by then.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      gate.open();
    });
    expect_equal(read(training), expected);
    opener.join();
    (void)training.weight(kLayers - 1).data_ptr();
  }
  EXPECT_FALSE(gate.is_late());
}

/// An update that fails beside the step ends the forward that needs it, not the
/// layers before, and nothing goes on with what it left.
inline void expect_failures_reach_the_forward(
    World& world,
    const EngineOptions& options) {
  Training training(world, options);
  training.step(training.forward(0));
  const at::Tensor result = training.forward(1);
  UpdateGate::instance().fail_at(1);
  training.step(result);
  const at::Tensor x = training.layer(0, training.input(2));
  expect_throws([&] { training.layer(1, x); }, {"this update fails"});
  expect_throws([&] { training.layer(2, x); }, {"this update fails"});
  expect_throws([&] { (void)training.weight(2).data_ptr(); }, {"under update"});
  expect_throws(
      [&] { training.engine->step(); }, {"optimizer state is incomplete"});
}

} // namespace gated_updates

} // namespace tessera::tests
