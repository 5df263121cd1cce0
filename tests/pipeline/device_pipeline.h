// SPDX-License-Identifier: Apache-2.0
#pragma once
// A pipeline over devices: the gradients of one rank.

#include "tessera/pipeline/make_schedule.h"
#include "tessera/pipeline/pipeline_executor.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace tessera::tests::device_pipeline {

inline constexpr int kMicroBatches = 5;

/// The weight of a layer, [32, 32].
inline at::Tensor weight_of(int layer, at::Device device) {
  torch::manual_seed(static_cast<uint64_t>(layer));
  return (torch::randn({32, 32}) / 5).to(device).requires_grad_();
}

inline at::Tensor batch_of(int number, at::Device device) {
  torch::manual_seed(static_cast<uint64_t>(100 + number));
  return torch::randn({64, 32}).to(device);
}

inline at::Tensor first_layer(const at::Tensor& x, const at::Tensor& weight) {
  return at::linear(x, weight).relu();
}

inline at::Tensor last_layer(const at::Tensor& x, const at::Tensor& weight) {
  return at::linear(x, weight).pow(2).mean();
}

/// Of two ranks. The lengths go along on the CPU, as a mask's might.
inline void expect_gradients_of_one_rank(World& world) {
  const at::Device device = world.device();
  const at::Tensor expected[] = {weight_of(0, device), weight_of(1, device)};
  for (int i = 0; i < kMicroBatches; ++i) {
    const at::Tensor x = first_layer(batch_of(i, device), expected[0]);
    (last_layer(x, expected[1]) / kMicroBatches).backward();
  }
  for (const auto kind :
       {PipelineScheduleKind::kGPipe,
        PipelineScheduleKind::kOneForwardOneBackward,
        PipelineScheduleKind::kZeroBubble}) {
    const int stage = world.rank();
    const at::Tensor local = weight_of(stage, device);
    runtime::RingChannels channels(world, "stages", {0, 1}, device);
    PipelineExecutor executor(
        make_schedule(kind, {2, kMicroBatches, 1}), &channels);
    executor.run(
        {[&](int, int number, const std::vector<at::Tensor>& received)
             -> std::vector<at::Tensor> {
          if (stage == 0) {
            return {
                first_layer(batch_of(number, device), local),
                torch::tensor({3})};
          }
          EXPECT_TRUE(received[1].is_cpu());
          return {last_layer(received[0], local)};
        }});
    EXPECT_TRUE(local.grad().allclose(expected[stage].grad(), 1e-4, 1e-6));
  }
}

} // namespace tessera::tests::device_pipeline
