// SPDX-License-Identifier: Apache-2.0
// Training on a CUDA device. The full product of the options is matrix_test's
// (matrix_gpu).
#include "engine/device_training.h"
#include "support/cuda_ranks_test.h"
#include "support/expect_error.h"

namespace tessera::engine::cuda_training_gpu_test {

namespace {

using namespace tests;

class CudaTraining : public CudaRanksTest {};

} // namespace

TEST_F(CudaTraining, InitLoadsCudaAndChoosesTheDevice) {
  run_ranks(
      1,
      [](World& world) {
        const at::Device device = cuda_device();
        EXPECT_EQ(world.device(), device);
        EXPECT_TRUE(at::globalContext()
                        .getAcceleratorHooksInterface(device.type())
                        .isAvailable());
        EXPECT_EQ(torch::zeros({1}, device.type()).device(), device);
      },
      kLimits);
}

TEST_F(CudaTraining, ATransformerAloneTrainsAsPlainLibTorch) {
  run_ranks(
      1,
      [](World& world) { device_training::expect_plain_training(world); },
      kLimits);
}

TEST_F(CudaTraining, AStreamOfTheUsersThatLagsSeesItsOwnWeights) {
  run_ranks(
      2,
      [](World& world) {
        device_training::expect_training_beside_a_lagging_stream(
            world, /*width=*/gpu_size(512, 64), /*busy=*/gpu_size(2048, 0));
      },
      kLimits);
}

TEST_F(CudaTraining, RunningOutOfDeviceMemoryIsReportedByPurpose) {
  run_ranks(
      1,
      [](World& world) {
        auto net = torch::nn::Sequential(torch::nn::Linear(64, 64));
        net->to(world.device());
        auto engine = wrap(net, device_training::quiet());
        auto loss = net->forward(torch::randn({2, 64}, world.device())).sum();
        loss.register_hook([](const at::Tensor& gradient) {
          return gradient +
                 torch::empty({int64_t{1} << 45}, gradient.options()).sum();
        });
        expect_error(
            [&] { engine.backward(loss); },
            {"CUDA out of memory", "optimizer state"});
      },
      kLimits);
}

} // namespace tessera::engine::cuda_training_gpu_test
