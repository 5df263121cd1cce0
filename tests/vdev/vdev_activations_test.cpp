// SPDX-License-Identifier: Apache-2.0
// Saved tensors of the virtual device that rest on the host.
#include "engine/activation_offload_cases.h"
#include "support/vdev/vdev.h"

namespace tessera::tests::vdev::vdev_activations_test {

namespace {

using Order = Policy::Order;

constexpr activation_cases::Sizes kSizes{64, 32}; // 8 KiB

class Activations : public ::testing::TestWithParam<Policy> {};

} // namespace

TEST_P(Activations, EqualBitForBitOnOneStreamAndOnTwo) {
  run_ranks_on_vdev(1, GetParam(), [](World& world) {
    activation_cases::expect_equal_bits(world, kSizes);
  });
}

TEST_P(Activations, TheDevicesPeakFalls) {
  run_ranks_on_vdev(1, GetParam(), [](World& world) {
    activation_cases::expect_lower_peak(world, kSizes);
  });
}

TEST_P(Activations, AWrappedModelTrainsTheSame) {
  run_ranks_on_vdev(2, GetParam(), [](World& world) {
    activation_cases::expect_same_training(world, 32, 64, 64 << 10);
  });
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Activations,
    ::testing::ValuesIn(policies(
        {{Order::kEager},
         {Order::kLazy},
         {Order::kRandom, 1},
         {Order::kRandom, 2},
         {Order::kStarve, 0, 0}})),
    [](const auto& which) { return which.param.name(); });

} // namespace tessera::tests::vdev::vdev_activations_test
