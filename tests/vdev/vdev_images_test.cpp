// SPDX-License-Identifier: Apache-2.0
// Patches of images, and blended images, on the virtual device.
#include "support/vdev/vdev.h"
#include "zoo/device_images.h"

namespace tessera::tests::vdev::vdev_images_test {

namespace {

using Order = Policy::Order;

class Images : public ::testing::TestWithParam<Policy> {};

} // namespace

TEST_P(Images, HaveThePatchesOfTheCpu) {
  run_ranks_on_vdev(
      1, GetParam(), zoo::device_images::expect_patches_of_the_cpu);
}

TEST_P(Images, BlendedTrainAsOnTheCpu) {
  const TemporaryFolder folder;
  run_ranks_on_vdev(2, GetParam(), [&](World& world) {
    zoo::device_images::expect_training_of_the_cpu(world, folder.path());
  });
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Images,
    ::testing::ValuesIn(policies({{Order::kLazy}, {Order::kRandom, 1}})),
    [](const auto& which) { return which.param.name(); });

} // namespace tessera::tests::vdev::vdev_images_test
