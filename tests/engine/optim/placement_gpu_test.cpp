// SPDX-License-Identifier: Apache-2.0
// Optimizer state of CUDA parameters: on the device, on the host, in files, and
// divided among them, in float32 and with master weights, updated by the CPU or
// streamed through the device: the same bits; all are saved and loaded.
#include "engine/checkpoint/checkpoint_support.h"

#include "support/cuda_devices.h"
#include "support/ranks.h"
#include "tessera/engine/optim/streamed_update.h"
#include "tessera/runtime/core/cuda_backend.h"

namespace tessera {

namespace {

using namespace testing;

std::map<std::string, at::Tensor> train_on_cuda(
    const OptimizerOptions& optimizer,
    std::optional<at::ScalarType> precision,
    const MemoryBudget& memory,
    const OffloadOptions& offload,
    const std::filesystem::path& folder,
    int64_t width = 13) {
  torch::manual_seed(1);
  auto net = torch::nn::Sequential(
      torch::nn::Linear(7, width),
      torch::nn::Tanh(),
      torch::nn::Linear(width, 3));
  net->to(at::kCUDA);
  auto options = group_per_layer();
  options.optimizer = optimizer;
  options.sharding.precision.parameters = precision;
  options.memory = memory;
  options.offload = offload;
  auto engine = wrap(net, options);
  const auto train = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      torch::manual_seed(i);
      const auto x = torch::randn({5, 7}).to(at::kCUDA);
      engine.backward(net->forward(x).square().mean());
      engine.step();
    }
  };
  train(3);
  engine.save(folder);
  train(2);
  engine.load(folder);
  train(2);
  return values_of(engine, *net);
}

} // namespace

TEST(PlacementGpu, HostStateGivesTheBitsOfDeviceState) {
  if (count_cuda_devices() == 0) {
    GTEST_SKIP() << "no CUDA device";
  }
  const TemporaryFolder folder;
  run_ranks(1, [&](World&) {
    load_cuda_backend();
    const UpdateRule rules[] = {
        AdamWOptions{.sqrt_rounding = SqrtRounding::kCorrect},
        SgdOptions{.momentum = 0.9},
        LionOptions{}};
    for (const UpdateRule& rule : rules) {
      for (const std::optional<at::ScalarType> precision :
           {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
        OptimizerOptions optimizer;
        optimizer.rule = rule;
        OffloadOptions offload;
        offload.ratio = 1;
        const auto train = [&](const char* where, const MemoryBudget& memory) {
          return train_on_cuda(
              optimizer, precision, memory, offload, folder / where);
        };
        const auto device = train("device", {});
        MemoryBudget memory;
        memory.nvme_path = folder.path();
        memory.host_bytes = 64 << 20;
        optimizer.placement = StatePlacement::kHost;
        expect_equal(train("host", memory), device, name_of(rule));
        optimizer.placement = StatePlacement::kNvme;
        expect_equal(train("nvme", memory), device, name_of(rule));
        for (const MemoryTier tier : {MemoryTier::kHost, MemoryTier::kNvme}) {
          memory.parameters = tier;
          memory.gradients = tier;
          const std::string where = std::string("all_") + name_of(tier);
          expect_equal(train(where.c_str(), memory), device, name_of(rule));
        }
        memory.parameters.reset();
        memory.gradients.reset();
        // Parameters, gradients and the state of the last layer.
        optimizer.placement = StatePlacement::kAutomatic;
        memory.device_bytes = 2500;
        expect_equal(train("mixed", memory), device, name_of(rule));
      }
    }
  });
}

// The device's own update in either case, so that roots do not matter.
TEST(PlacementGpu, StreamedStateGivesTheBitsOfDeviceState) {
  if (count_cuda_devices() == 0) {
    GTEST_SKIP() << "no CUDA device";
  }
  const TemporaryFolder folder;
  run_ranks(1, [&](World&) {
    load_cuda_backend();
    MemoryBudget memory;
    memory.nvme_path = folder.path();
    const UpdateRule rules[] = {
        AdamWOptions{.sqrt_rounding = SqrtRounding::kCorrect},
        SgdOptions{.momentum = 0.9},
        LionOptions{}};
    for (const UpdateRule& rule : rules) {
      for (const std::optional<at::ScalarType> precision :
           {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
        OptimizerOptions optimizer;
        optimizer.rule = rule;
        OffloadOptions offload;
        // A layer's state passes in several pieces.
        offload.stage_bytes = StreamedUpdate::kMinBytes;
        const auto train = [&](const char* where) {
          return train_on_cuda(
              optimizer, precision, memory, offload, folder / where, 300);
        };
        const auto device = train("resident");
        for (const std::optional<double> ratio :
             {std::optional(0.0),
              std::optional(0.5),
              std::optional<double>()}) { // the last one is measured
          offload.ratio = ratio;
          optimizer.placement = StatePlacement::kHost;
          expect_equal(train("host-streamed"), device, name_of(rule));
          optimizer.placement = StatePlacement::kNvme;
          expect_equal(train("nvme-streamed"), device, name_of(rule));
        }
      }
    }
  });
}

} // namespace tessera
