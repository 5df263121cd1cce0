// SPDX-License-Identifier: Apache-2.0
// Patches of images, and blended images, on a CUDA device.
#include "support/cuda_ranks_test.h"
#include "zoo/device_images.h"

namespace tessera::zoo::images_gpu_test {
namespace {

class ImagesOnCuda : public tests::CudaRanksTest {};

} // namespace

TEST_F(ImagesOnCuda, HaveThePatchesOfTheCpu) {
  tests::run_ranks(1, device_images::expect_patches_of_the_cpu, kLimits);
}

TEST_F(ImagesOnCuda, BlendedTrainAsOnTheCpu) {
  const TemporaryFolder folder;
  tests::run_ranks(
      1,
      [&](World& world) {
        device_images::expect_training_of_the_cpu(world, folder.path());
      },
      kLimits);
}

} // namespace tessera::zoo::images_gpu_test
