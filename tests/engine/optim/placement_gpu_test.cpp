// SPDX-License-Identifier: Apache-2.0
// Optimizer state of CUDA parameters: on the device, on the host, in files, and
// divided among them, in float32 and with master weights, updated by the CPU or
// streamed through the device: the same bits; all are saved and loaded.
#include "engine/checkpoint/checkpoint_support.h"

#include "support/cuda_devices.h"
#include "support/ranks.h"
#include "tessera/engine/library_memory.h"
#include "tessera/engine/optim/streamed_update.h"
#include "tessera/runtime/core/cuda_backend.h"

namespace tessera::engine::placement_gpu_test {

namespace {

using namespace tests;

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

/// Steps of which every other one is clipped, unless groups are updated in
/// backward.
std::map<std::string, at::Tensor> train_overlapped(
    UpdateOverlap overlap,
    StatePlacement placement,
    bool in_backward,
    at::ScalarType precision,
    const std::filesystem::path& folder) {
  torch::manual_seed(1);
  auto net = torch::nn::Sequential(
      torch::nn::Linear(7, 13),
      torch::nn::Tanh(),
      torch::nn::Linear(13, 13),
      torch::nn::Tanh(),
      torch::nn::Linear(13, 3));
  net->to(at::kCUDA);
  auto options = group_per_layer();
  options.optimizer.rule = AdamWOptions{};
  options.optimizer.overlap = overlap;
  options.optimizer.placement = placement;
  options.sharding.precision.parameters = precision;
  options.memory.nvme_path = folder;
  options.offload.ratio = 1;
  options.update_in_backward = in_backward;
  auto engine = wrap(net, options);
  for (int step = 0; step < 8; ++step) {
    torch::manual_seed(step);
    const auto x = torch::randn({5, 7}).to(at::kCUDA);
    engine.backward(net->forward(x).square().mean());
    if (!in_backward) {
      engine.clip_grad_norm(step % 2 == 0 ? 1e-3 : 1e9);
    }
    engine.step();
  }
  EXPECT_EQ(
      engine.update_statistics().taken > 0,
      overlap == UpdateOverlap::kSpeculate);
  return values_of(engine, *net);
}

} // namespace

TEST(PlacementGpu, OverlappedUpdatesGiveTheBitsOfSerialOnes) {
  if (count_cuda_devices() == 0) {
    GTEST_SKIP() << "no CUDA device";
  }
  const TemporaryFolder folder;
  run_ranks(1, [&](World&) {
    runtime::load_cuda_backend();
    for (const at::ScalarType precision : {at::kFloat, at::kBFloat16}) {
      for (const StatePlacement placement :
           {StatePlacement::kHost, StatePlacement::kNvme}) {
        for (const bool in_backward : {false, true}) {
          const auto train = [&](UpdateOverlap overlap) {
            return train_overlapped(
                overlap, placement, in_backward, precision, folder.path());
          };
          const auto serial = train(UpdateOverlap::kOff);
          expect_equal(train(UpdateOverlap::kWait), serial, "wait");
          if (!in_backward) {
            expect_equal(train(UpdateOverlap::kSpeculate), serial, "speculate");
          }
        }
      }
    }
  });
}

TEST(PlacementGpu, HostStateGivesTheBitsOfDeviceState) {
  if (count_cuda_devices() == 0) {
    GTEST_SKIP() << "no CUDA device";
  }
  const TemporaryFolder folder;
  run_ranks(1, [&](World& world) {
    runtime::load_cuda_backend();
    const UpdateRule rules[] = {
        AdamWOptions{}, SgdOptions{.momentum = 0.9}, LionOptions{}};
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
        memory.device_bytes = 2500 + library_bytes(world, world.device());
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
    runtime::load_cuda_backend();
    MemoryBudget memory;
    memory.nvme_path = folder.path();
    const UpdateRule rules[] = {
        AdamWOptions{}, SgdOptions{.momentum = 0.9}, LionOptions{}};
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

} // namespace tessera::engine::placement_gpu_test
