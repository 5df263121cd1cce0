// SPDX-License-Identifier: Apache-2.0
// Masks of packed documents and of pairs of answers on the virtual device.
#include "support/vdev/vdev.h"
#include "zoo/device_masks.h"

namespace tessera::tests::vdev::vdev_masks_test {

namespace {

using Order = Policy::Order;

class Masks : public ::testing::TestWithParam<Policy> {};

} // namespace

TEST_P(Masks, KeepPackedDocumentsApart) {
  run_ranks_on_vdev(1, GetParam(), zoo::device_masks::expect_documents_apart);
}

TEST_P(Masks, GivePackedDocumentsTheGradientsOfEachAlone) {
  run_ranks_on_vdev(
      1, GetParam(), zoo::device_masks::expect_gradients_of_each_alone);
}

TEST_P(Masks, GivePairsTheLossesAndGradientsOfTheCpu) {
  run_ranks_on_vdev(
      1, GetParam(), zoo::device_masks::expect_preferences_of_the_cpu);
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Masks,
    ::testing::ValuesIn(policies({{Order::kLazy}, {Order::kRandom, 1}})),
    [](const auto& which) { return which.param.name(); });

} // namespace tessera::tests::vdev::vdev_masks_test
