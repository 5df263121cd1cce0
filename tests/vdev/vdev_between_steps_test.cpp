// SPDX-License-Identifier: Apache-2.0
// What happens while all-gathers or reductions are under way: weights and
// checkpoints are loaded, and engines go.
#include "engine/parity.h"
#include "support/temporary_folder.h"
#include "support/vdev/vdev.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/streams/stream_marks.h"
#include "tessera/sharding/lazy/move_module.h"

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace tessera::tests::vdev::vdev_between_steps_test {

namespace {

constexpr int64_t kWidth = 32;

torch::nn::Sequential make_net(World& world) {
  torch::manual_seed(5);
  torch::nn::Sequential net;
  for (int i = 0; i < 5; ++i) {
    net->push_back(torch::nn::Linear(kWidth, kWidth));
  }
  move_module(*net, world.device());
  return net;
}

EngineOptions options_of() {
  EngineOptions options;
  options.log_memory = false;
  options.optimizer.lr = 1e-2;
  options.sharding.groups.min_group_numel = kWidth * kWidth;
  return options;
}

/// Updates on the device or beside it, which go on after the step.
/// @param ratio of the CPU.
EngineOptions overlapping(double ratio) {
  EngineOptions options = options_of();
  options.placement.optimizer = MemoryTier::kHost;
  options.optimizer.overlap = UpdateOverlap::kWait;
  options.offload.ratio = ratio;
  return options;
}

int64_t state_bytes(const Engine& engine, MemoryTier tier) {
  return engine.planned_memory(
      tier)[static_cast<size_t>(MemoryPurpose::kOptimizerState)];
}

/// Some layers' state rests on the device and is updated there, beside forward
/// and backward, as is that on the host.
EngineOptions mixed(World& world) {
  auto net = make_net(world);
  const Engine resident = wrap(net, options_of());
  EngineOptions options = overlapping(1);
  options.placement.optimizer = std::nullopt;
  options.memory.host_bytes = 64 << 20;
  options.memory.device_bytes = total_bytes(resident.planned_memory()) -
                                state_bytes(resident, MemoryTier::kDevice) / 2;
  return options;
}

/// Engines whose transfers are of different kinds.
std::vector<EngineOptions> engines(World& world) {
  EngineOptions in_backward = options_of();
  in_backward.update_in_backward = true;
  EngineOptions on_host = options_of();
  on_host.placement.parameters = MemoryTier::kHost;
  on_host.placement.gradients = MemoryTier::kHost;
  EngineOptions streamed = overlapping(0);
  streamed.optimizer.overlap = UpdateOverlap::kOff;
  EngineOptions streamed_in_backward = streamed;
  streamed_in_backward.update_in_backward = true;
  return {
      options_of(),
      in_backward,
      on_host,
      streamed,
      streamed_in_backward,
      overlapping(0),
      overlapping(1),
      mixed(world)};
}

at::Tensor loss_of(torch::nn::Sequential& net, World& world, int step) {
  torch::manual_seed(100 + step);
  const auto x = torch::randn({4, kWidth}, at::kCPU).to(world.device());
  return net->forward(x).square().mean();
}

/// After the last, all-gathers for the next step are under way.
void train(
    Engine& engine,
    torch::nn::Sequential& net,
    World& world,
    int steps) {
  for (int step = 0; step < steps; ++step) {
    engine.backward(loss_of(net, world, step));
    engine.step();
  }
}

std::map<std::string, at::Tensor> values_of(Engine& engine) {
  std::map<std::string, at::Tensor> values;
  engine.for_each_parameter(
      [&](const std::string& name, const at::Tensor& value) {
        values[name] = value.cpu();
      });
  return values;
}

void expect_equal(
    const std::map<std::string, at::Tensor>& got,
    const std::map<std::string, at::Tensor>& expected) {
  for (const auto& [name, value] : expected) {
    EXPECT_TRUE(torch::equal(got.at(name), value)) << name;
  }
}

} // namespace

class BetweenSteps : public ::testing::TestWithParam<std::tuple<int, Policy>> {
 protected:
  void run(const std::function<void(World&)>& body) {
    const auto& [ranks, policy] = GetParam();
    run_ranks_on_vdev(ranks, policy, body);
  }
};

TEST_P(BetweenSteps, WeightsAreLoadedWhileAllGathersReadTheOld) {
  const TemporaryFolder folder;
  run([&](World& world) {
    for (const EngineOptions& options :
         {options_of(), overlapping(0), overlapping(1)}) {
      const auto path = folder.path() / "weights";
      auto net = make_net(world);
      Engine engine = wrap(net, options);
      train(engine, net, world, 2);
      engine.save_weights(path);
      const auto saved = values_of(engine);
      train(engine, net, world, 2);
      engine.load_weights(path);
      expect_equal(values_of(engine), saved);
      train(engine, net, world, 1);
    }
  });
}

TEST_P(BetweenSteps, ACheckpointIsLoadedWhileAllGathersReadTheOldWeights) {
  const TemporaryFolder folder;
  run([&](World& world) {
    for (const EngineOptions& options :
         {options_of(), overlapping(0), overlapping(1)}) {
      auto net = make_net(world);
      Engine engine = wrap(net, options);
      train(engine, net, world, 2);
      const auto path = engine.save(folder.path());
      train(engine, net, world, 2);
      const auto expected = values_of(engine);
      engine.load(path);
      train(engine, net, world, 2);
      expect_equal(values_of(engine), expected);
    }
  });
}

TEST_P(BetweenSteps, WhatAnEngineLeavesIsNotInUse) {
  run([&](World& world) {
    for (const EngineOptions& options : engines(world)) {
      for (const bool reduces : {false, true}) {
        auto net = make_net(world);
        std::optional<Engine> engine(wrap(net, options));
        if (options.memory.device_bytes) {
          EXPECT_GT(state_bytes(*engine, MemoryTier::kDevice), 0);
          EXPECT_GT(state_bytes(*engine, MemoryTier::kHost), 0);
        }
        train(*engine, net, world, 2);
        if (reduces) {
          engine->backward(loss_of(net, world, 2));
        }
        // Its memory is that of the stream on which it was made.
        const auto main = runtime::current_stream(world.device());
        const c10::StreamGuard on_other(new_stream(world.device()));
        runtime::StreamMarks used;
        used.add(*main);
        used.block_current(world.device());
        engine.reset();
        const c10::StreamGuard on_main(*main);
        use_free_memory(
            world.device(), {64, 1024, 1056, 2112, 4224, 8448, 20'000});
      }
    }
  });
}

// What was gathered ahead for a second forward, which does not come.
TEST_P(BetweenSteps, AStepIsShorterThanItsPlan) {
  run([&](World& world) {
    for (const EngineOptions& options : engines(world)) {
      auto net = make_net(world);
      Engine engine = wrap(net, options);
      for (int step = 0; step < 4; ++step) {
        const int backwards =
            options.update_in_backward || step % 2 == 1 ? 1 : 2;
        for (int i = 0; i < backwards; ++i) {
          engine.backward(loss_of(net, world, 2 * step + i));
        }
        engine.step();
      }
    }
  });
}

// The update in the second backward follows who reads the loaded weights.
TEST_P(BetweenSteps, WeightsAreLoadedAfterAnUpdateInBackward) {
  const TemporaryFolder folder;
  run([&](World& world) {
    const auto path = folder.path() / "weights";
    EngineOptions options = options_of();
    options.update_in_backward = true;
    auto net = make_net(world);
    Engine engine = wrap(net, options);
    train(engine, net, world, 2);
    engine.save_weights(path);
    engine.backward(loss_of(net, world, 2));
    engine.load_weights(path);
    const c10::Stream reader = new_stream(world.device());
    const at::Tensor loss = loss_of(net, world, 3);
    runtime::mark_current(world.device()).block(reader);
    {
      const c10::StreamGuard on_reader(reader);
      const torch::NoGradGuard no_grad;
      loss_of(net, world, 3);
    }
    engine.backward(loss);
    runtime::StreamMarks read;
    read.add(reader);
    read.block_current(world.device());
    engine.step();
    train(engine, net, world, 1);
  });
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    BetweenSteps,
    ::testing::Combine(
        ::testing::Values(1, 2),
        ::testing::ValuesIn(policies(
            {{Policy::Order::kEager},
             {Policy::Order::kLazy},
             {Policy::Order::kStarve, 0, 0}}))),
    [](const auto& which) {
      return std::to_string(std::get<0>(which.param)) + "_ranks_" +
             std::get<1>(which.param).name();
    });

} // namespace tessera::tests::vdev::vdev_between_steps_test
