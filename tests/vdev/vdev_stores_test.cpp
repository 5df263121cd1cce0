// SPDX-License-Identifier: Apache-2.0
// Shards at rest on the host and in files, and modules that move, on the
// virtual device.
#include "offload/device_shards.h"
#include "sharding/move_module_cases.h"
#include "support/vdev/vdev.h"

namespace tessera::tests::vdev::vdev_stores_test {

namespace {

using Order = Policy::Order;

class Stores : public ::testing::TestWithParam<Policy> {};

/// More than one of the blocks in which files are read.
constexpr int64_t kNumel = (int64_t{9} << 18) + 77;

} // namespace

TEST_P(Stores, TheHostGivesBackWhatTheStreamWrote) {
  run_ranks_on_vdev(1, GetParam(), [](World& world) {
    device_shards::expect_order_of_host_store(world.device(), kNumel);
  });
}

TEST_P(Stores, FilesGiveBackWhatTheStreamWrote) {
  run_ranks_on_vdev(1, GetParam(), [](World& world) {
    device_shards::expect_order_of_nvme_store(world.device(), kNumel);
  });
}

TEST_P(Stores, ALazyModuleIsMaterializedOnTheDevice) {
  run_ranks_on_vdev(1, GetParam(), [](World&) {
    move_module_cases::expect_materialized_there();
  });
}

TEST_P(Stores, AModuleWithMemoryIsCopied) {
  run_ranks_on_vdev(1, GetParam(), move_module_cases::expect_copied);
}

TEST_P(Stores, ALazyModuleIsDividedOnTheDevice) {
  run_ranks_on_vdev(
      2, GetParam(), [](World&) { move_module_cases::expect_divided_there(); });
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Stores,
    ::testing::ValuesIn(policies({{Order::kLazy}, {Order::kRandom, 1}})),
    [](const auto& info) { return info.param.name(); });

} // namespace tessera::tests::vdev::vdev_stores_test
