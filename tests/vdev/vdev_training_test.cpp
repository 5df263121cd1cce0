// SPDX-License-Identifier: Apache-2.0
// The GPU tests of training, the trainer and pipelines on the virtual device.
#include "engine/device_training.h"
#include "engine/trainer/device_trainer.h"
#include "pipeline/device_pipeline.h"
#include "support/temporary_folder.h"
#include "support/vdev/vdev.h"

namespace tessera::tests::vdev::vdev_training_test {

namespace {

using Order = Policy::Order;

class Training : public ::testing::TestWithParam<Policy> {};

} // namespace

TEST_P(Training, ATransformerAloneTrainsAsPlainLibTorch) {
  run_ranks_on_vdev(1, GetParam(), device_training::expect_plain_training);
}

TEST_P(Training, AStreamOfTheUsersThatLagsSeesItsOwnWeights) {
  run_ranks_on_vdev(2, GetParam(), [](World& world) {
    device_training::expect_training_beside_a_lagging_stream(
        world, /*width=*/64, /*busy=*/0);
  });
}

TEST_P(Training, TheTrainersLossesAreThoseOfTheCpu) {
  const TemporaryFolder folder;
  run_ranks_on_vdev(1, GetParam(), [&](World& world) {
    device_trainer::expect_losses_of_the_cpu(world, folder.path());
  });
}

TEST_P(Training, TheTrainerScalesLosses) {
  const TemporaryFolder folder;
  run_ranks_on_vdev(1, GetParam(), [&](World& world) {
    device_trainer::expect_training_with_loss_scaling(world, folder.path());
  });
}

TEST_P(Training, BatchesTravelThroughPinnedMemory) {
  run_ranks_on_vdev(
      1, GetParam(), device_trainer::expect_batches_through_pinned_memory);
}

TEST_P(Training, APipelineHasTheGradientsOfOneRank) {
  run_ranks_on_vdev(
      2, GetParam(), device_pipeline::expect_gradients_of_one_rank);
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Training,
    ::testing::ValuesIn(policies(
        {{Order::kLazy}, {Order::kRandom, 1}, {Order::kStarve, 0, 1}})),
    [](const auto& which) { return which.param.name(); });

} // namespace tessera::tests::vdev::vdev_training_test
