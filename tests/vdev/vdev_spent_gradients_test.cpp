// SPDX-License-Identifier: Apache-2.0
// Backward on the virtual device that writes over spent gradients.
#include "engine/device_spent_gradients.h"
#include "support/vdev/vdev.h"

namespace tessera::tests::vdev::vdev_spent_gradients_test {

namespace {

using Order = Policy::Order;

class SpentGradients : public ::testing::TestWithParam<Policy> {};

} // namespace

TEST_P(SpentGradients, AreWrittenOverWithTheSameBits) {
  run_ranks_on_vdev(1, GetParam(), device_spent_gradients::expect_written_over);
}

TEST_P(SpentGradients, TrainAsWithoutWritingOverThem) {
  run_ranks_on_vdev(
      2, GetParam(), device_spent_gradients::expect_bits_of_training_without);
}

TEST_P(SpentGradients, TakeLessMemory) {
  run_ranks_on_vdev(1, GetParam(), device_spent_gradients::expect_less_memory);
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    SpentGradients,
    ::testing::ValuesIn(policies(
        {{Order::kLazy}, {Order::kRandom, 1}, {Order::kStarve, 0, 0}})),
    [](const auto& which) { return which.param.name(); });

} // namespace tessera::tests::vdev::vdev_spent_gradients_test
