// SPDX-License-Identifier: Apache-2.0
// Parameters, gradients and optimizer state on the virtual device, on the host
// and in files, updated by the CPU, streamed through the device, and beside the
// computation: the same bits in any order of execution.
#include "engine/checkpoint/checkpoint_support.h"
#include "support/vdev/vdev.h"
#include "tessera/engine/optim/streamed_update.h"

#include <gtest/gtest.h>

namespace tessera::tests::vdev::vdev_placement_test {

namespace {

using Order = Policy::Order;

struct Setting {
  OptimizerOptions optimizer;
  MemoryBudget memory;
  OffloadOptions offload;
  std::optional<at::ScalarType> precision;
  bool update_in_backward = false;
  /// Norms of gradients on the host are added up in another order.
  bool clips = false;
};

std::map<std::string, at::Tensor> train(
    const World& world,
    const Setting& setting,
    int64_t width = 13) {
  torch::manual_seed(1);
  auto net = torch::nn::Sequential(
      torch::nn::Linear(7, width),
      torch::nn::Tanh(),
      torch::nn::Linear(width, width),
      torch::nn::Tanh(),
      torch::nn::Linear(width, 3));
  move_to(*net, world.device());
  auto options = group_per_layer();
  options.optimizer = setting.optimizer;
  options.sharding.precision.parameters = setting.precision;
  options.memory = setting.memory;
  options.offload = setting.offload;
  options.update_in_backward = setting.update_in_backward;
  auto engine = wrap(net, options);
  for (int step = 0; step < 6; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      torch::manual_seed(100 * world.rank() + 2 * step + micro);
      const auto x = torch::randn({5, 7}).to(world.device());
      engine.backward(net->forward(x).square().mean());
      if (setting.update_in_backward) {
        break;
      }
    }
    if (setting.clips) {
      engine.clip_grad_norm(step % 2 == 0 ? 1e-3 : 1e9);
    }
    engine.step();
  }
  auto values = values_of(engine, *net);
  for (auto& [name, value] : values) {
    value = value.cpu();
  }
  return values;
}

std::vector<Policy> policies() {
  return {
      {Order::kEager},
      {Order::kLazy},
      {Order::kRandom, 1},
      {Order::kRandom, 2},
      {Order::kStarve, 0, 0}};
}

constexpr RankOptions kLimits{std::chrono::seconds(200)};

} // namespace

class Placement : public ::testing::TestWithParam<std::tuple<Policy, int>> {
 protected:
  void run(const std::function<void(World&)>& body) {
    const auto& [policy, ranks] = GetParam();
    run_ranks_on_vdev(ranks, policy, body, kLimits);
  }
};

TEST_P(Placement, HostStateGivesTheBitsOfDeviceState) {
  const TemporaryFolder folder;
  run([&](World& world) {
    for (const std::optional<at::ScalarType> precision :
         {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
      Setting setting;
      setting.precision = precision;
      setting.offload.ratio = 1;
      const auto device = train(world, setting);
      setting.memory.nvme_path = folder.path();
      setting.memory.host_bytes = 64 << 20;
      setting.optimizer.placement = StatePlacement::kHost;
      expect_equal(train(world, setting), device, "host");
      setting.optimizer.placement = StatePlacement::kNvme;
      expect_equal(train(world, setting), device, "nvme");
      for (const MemoryTier tier : {MemoryTier::kHost, MemoryTier::kNvme}) {
        setting.memory.parameters = tier;
        setting.memory.gradients = tier;
        expect_equal(train(world, setting), device, name_of(tier));
      }
    }
  });
}

TEST_P(Placement, OverlappedUpdatesGiveTheBitsOfSerialOnes) {
  const TemporaryFolder folder;
  run([&](World& world) {
    for (const StatePlacement placement :
         {StatePlacement::kHost, StatePlacement::kNvme}) {
      for (const bool in_backward : {false, true}) {
        Setting setting;
        setting.optimizer.placement = placement;
        setting.memory.nvme_path = folder.path();
        setting.offload.ratio = 1;
        setting.precision = at::kBFloat16;
        setting.update_in_backward = in_backward;
        setting.clips = !in_backward;
        setting.optimizer.overlap = UpdateOverlap::kOff;
        const auto serial = train(world, setting);
        setting.optimizer.overlap = UpdateOverlap::kWait;
        expect_equal(train(world, setting), serial, "wait");
        if (!in_backward) {
          setting.optimizer.overlap = UpdateOverlap::kSpeculate;
          expect_equal(train(world, setting), serial, "speculate");
        }
      }
    }
  });
}

TEST_P(Placement, StreamedStateGivesTheBitsOfDeviceState) {
  const TemporaryFolder folder;
  run([&](World& world) {
    Setting setting;
    setting.memory.nvme_path = folder.path();
    // A layer's state passes in several pieces.
    setting.offload.stage_bytes = engine::StreamedUpdate::kMinBytes;
    const auto device = train(world, setting, 300);
    for (const double ratio : {0.0, 0.5}) {
      setting.offload.ratio = ratio;
      setting.optimizer.placement = StatePlacement::kHost;
      expect_equal(train(world, setting, 300), device, "host, streamed");
      setting.optimizer.placement = StatePlacement::kNvme;
      expect_equal(train(world, setting, 300), device, "nvme, streamed");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Placement,
    ::testing::Combine(
        ::testing::ValuesIn(policies()),
        ::testing::Values(1, 2)),
    [](const auto& which) {
      return std::get<Policy>(which.param).name() + "_" +
             std::to_string(std::get<int>(which.param)) + "_ranks";
    });

} // namespace tessera::tests::vdev::vdev_placement_test
