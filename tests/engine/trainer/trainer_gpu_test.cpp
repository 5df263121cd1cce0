// SPDX-License-Identifier: Apache-2.0
#include "engine/trainer/device_trainer.h"
#include "support/cuda_ranks_test.h"
#include "support/temporary_folder.h"
#include "tessera/engine/trainer/step_timing.h"

namespace tessera::engine::trainer_gpu_test {

namespace {

using namespace tests;

class TrainerCuda : public CudaRanksTest {};

} // namespace

TEST_F(TrainerCuda, TheLossesAreThoseOfTheCpu) {
  const TemporaryFolder folder;
  run_ranks(
      1,
      [&](World& world) {
        device_trainer::expect_losses_of_the_cpu(world, folder.path());
      },
      kLimits);
}

TEST_F(TrainerCuda, TrainsInFloat16WithLossScaling) {
  const TemporaryFolder folder;
  run_ranks(
      1,
      [&](World& world) {
        device_trainer::expect_training_with_loss_scaling(world, folder.path());
      },
      kLimits);
}

// The device is far behind the host: what it takes is not what the host takes.
TEST_F(TrainerCuda, PhasesAreTimedOnTheDevice) {
  run_ranks(
      1,
      [](World& world) {
        const at::Tensor a = torch::randn({4096, 4096}, world.device());
        TransferWaits waits;
        StepTiming timing(world.device(), waits);
        timing.begin(StepPhase::kData);
        timing.begin(StepPhase::kForward);
        at::Tensor b = a;
        for (int i = 0; i < 20; ++i) {
          b = b.mm(a) * 1e-3;
        }
        timing.begin(StepPhase::kBackward);
        timing.end();
        const StepSplit split = timing.take();
        EXPECT_GT(split.forward, 10 * (split.data + split.backward));
      },
      kLimits);
}

TEST_F(TrainerCuda, BatchesTravelThroughPinnedMemory) {
  run_ranks(1, device_trainer::expect_batches_through_pinned_memory, kLimits);
}

} // namespace tessera::engine::trainer_gpu_test
