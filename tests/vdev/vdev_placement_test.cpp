// SPDX-License-Identifier: Apache-2.0
// Parameters, gradients and optimizer state of the virtual device in all tiers:
// the same bits in any order of execution.
#include "engine/optim/device_placement.h"
#include "support/temporary_folder.h"
#include "support/vdev/vdev.h"

#include <tuple>

namespace tessera::tests::vdev::vdev_placement_test {

namespace {

using Order = Policy::Order;

const std::vector<UpdateRule>& rules() {
  static const std::vector<UpdateRule> all{AdamWOptions{}, AdanOptions{}};
  return all;
}

std::vector<Policy> orders() {
  return policies(
      {{Order::kEager},
       {Order::kLazy},
       {Order::kRandom, 1},
       {Order::kRandom, 2},
       {Order::kStarve, 0, 0}});
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
    device_placement::expect_bits_of_host_state(
        world, rules(), folder.path(), /*saves=*/false);
  });
}

TEST_P(Placement, OverlappedUpdatesGiveTheBitsOfSerialOnes) {
  const TemporaryFolder folder;
  run([&](World& world) {
    device_placement::expect_bits_of_overlapped_updates(
        world, {at::kBFloat16}, folder.path());
  });
}

TEST_P(Placement, StreamedStateGivesTheBitsOfDeviceState) {
  const TemporaryFolder folder;
  run([&](World& world) {
    device_placement::expect_bits_of_streamed_state(
        world, rules(), {0.0, 0.5}, folder.path(), /*saves=*/false);
  });
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Placement,
    ::testing::Combine(::testing::ValuesIn(orders()), ::testing::Values(1, 2)),
    [](const auto& which) {
      return std::get<Policy>(which.param).name() + "_" +
             std::to_string(std::get<int>(which.param)) + "_ranks";
    });

} // namespace tessera::tests::vdev::vdev_placement_test
