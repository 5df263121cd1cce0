// SPDX-License-Identifier: Apache-2.0
// Shards at rest on the host and in files, and modules that move, on the
// virtual device.
#include "offload/stores/device_shards.h"
#include "sharding/lazy/move_module_cases.h"
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

TEST_P(Stores, StreamsFollowEachOtherInPlaceOfTheHost) {
  run_ranks_on_vdev(1, GetParam(), [](World& world) {
    MemoryLedger ledger;
    offload::HostMemory memory({.device = world.device()}, ledger);
    offload::HostStore store(memory);
    const auto waits = [] {
      return Runtime::instance().counters().synchronizations;
    };
    const int64_t before = waits();
    constexpr int kRounds = 5;
    const auto shard =
        device_shards::add_on_lanes(store, world.device(), kNumel, kRounds);
    EXPECT_EQ(waits(), before);
    EXPECT_EQ(shard->in_place().min().item<float>(), kRounds);
    // For the last lane, which has followed all others.
    EXPECT_LE(waits(), before + 2);
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
