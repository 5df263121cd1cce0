// SPDX-License-Identifier: Apache-2.0
// A pipeline over CUDA devices: the gradients of one rank.
#include "support/cuda_ranks_test.h"
#include "tessera/pipeline/make_schedule.h"
#include "tessera/pipeline/pipeline_executor.h"

#include <torch/torch.h>

#include <vector>

namespace tessera::pipeline::pipeline_gpu_test {

namespace {

using namespace tests;

class PipelineCuda : public CudaRanksTest {};

constexpr int kMicroBatches = 5;

torch::nn::Linear layer_of(int number, at::Device device) {
  torch::manual_seed(static_cast<uint64_t>(number));
  torch::nn::Linear layer(32, 32);
  layer->to(device);
  return layer;
}

at::Tensor batch_of(int number, at::Device device) {
  torch::manual_seed(static_cast<uint64_t>(100 + number));
  return torch::randn({64, 32}).to(device);
}

} // namespace

// The lengths go along on the CPU, as a mask's might.
TEST_F(PipelineCuda, HasTheGradientsOfOneRank) {
  run_ranks(
      2,
      [](World& world) {
        const at::Device device = world.device();
        torch::nn::Linear layers[] = {layer_of(0, device), layer_of(1, device)};
        for (int i = 0; i < kMicroBatches; ++i) {
          const at::Tensor loss =
              layers[1](layers[0](batch_of(i, device)).relu()).pow(2).mean();
          (loss / kMicroBatches).backward();
        }
        for (const auto kind :
             {PipelineScheduleKind::kGPipe,
              PipelineScheduleKind::kOneForwardOneBackward,
              PipelineScheduleKind::kZeroBubble}) {
          const int stage = world.rank();
          torch::nn::Linear own = layer_of(stage, device);
          runtime::RingChannels channels(world, "stages", {0, 1}, device);
          PipelineExecutor executor(
              make_schedule(kind, {2, kMicroBatches, 1}), &channels);
          executor.run(
              {[&](int, int number, const std::vector<at::Tensor>& received)
                   -> std::vector<at::Tensor> {
                if (stage == 0) {
                  return {
                      own(batch_of(number, device)).relu(), torch::tensor({3})};
                }
                EXPECT_TRUE(received[1].is_cpu());
                return {own(received[0]).pow(2).mean()};
              }});
          const auto index = static_cast<size_t>(stage);
          EXPECT_TRUE(own->weight.grad().allclose(
              layers[index]->weight.grad(), 1e-4, 1e-6));
        }
      },
      kLimits);
}

} // namespace tessera::pipeline::pipeline_gpu_test
