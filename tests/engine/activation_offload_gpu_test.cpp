// SPDX-License-Identifier: Apache-2.0
// Saved tensors of a CUDA device that rest on the host: copies in both
// directions run beside the computation, and must not change a bit.
#include "support/cuda_ranks_test.h"
#include "tessera/engine/engine.h"
#include "tessera/offload/host_activation_sink.h"
#include "tessera/runtime/memory/saved_tensor_hooks.h"
#include "tessera/runtime/memory/stream_marks.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tessera::engine::activation_offload_gpu_test {

namespace {

using namespace tests;

constexpr int64_t kMiB = 1 << 20;

class CudaActivations : public CudaRanksTest {};

/// Residual layers; with `side`, every other one on that stream.
at::Tensor layers(
    at::Tensor x,
    const std::vector<at::Tensor>& weights,
    const std::optional<c10::Stream>& side) {
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto layer = [&] {
      return x + torch::gelu(x.mm(weights[i])).mm(weights[i].t()) * 0.1;
    };
    if (!side || i % 2 == 0) {
      x = layer();
      continue;
    }
    runtime::mark_current(x.device()).block(*side);
    at::Tensor y;
    runtime::StreamMarks done;
    {
      const c10::StreamGuard guard(*side);
      y = layer();
      done = runtime::mark_current(x.device());
    }
    done.block_current(x.device());
    x = y;
  }
  return x;
}

struct Work {
  explicit Work(c10::Device device, int count = 8) {
    torch::manual_seed(7);
    for (int i = 0; i < count; ++i) {
      weights.push_back(
          (torch::randn({512, 1024}, device) / 40).requires_grad_());
    }
    x = torch::randn({2048, 512}, device); // 4 MiB
  }
  /// Gradients of all weights.
  std::vector<at::Tensor> run(const std::optional<c10::Stream>& side = {}) {
    for (auto& weight : weights) {
      weight.mutable_grad() = at::Tensor();
    }
    layers(x, weights, side).square().mean().backward();
    std::vector<at::Tensor> gradients;
    for (const auto& weight : weights) {
      gradients.push_back(weight.grad());
    }
    return gradients;
  }
  std::vector<at::Tensor> weights;
  at::Tensor x;
};

offload::HostActivationSinkOptions on_device(
    c10::Device device,
    int64_t device_bytes,
    int64_t prefetch_bytes) {
  offload::HostActivationSinkOptions options;
  options.device = device;
  options.device_bytes = device_bytes;
  options.prefetch_bytes = prefetch_bytes;
  return options;
}

} // namespace

TEST_F(CudaActivations, EqualBitForBitOnOneStreamAndOnTwo) {
  run_ranks(
      1,
      [](World& world) {
        Work work(world.device());
        const auto side =
            c10::impl::getDeviceGuardImpl(at::kCUDA)->getStreamFromGlobalPool(
                world.device(), false);
        const auto expected = work.run();
        for (const int64_t budget : {0, 12, 30}) {
          for (const int64_t prefetch : {0, 8, 64}) {
            for (const bool at_once : {false, true}) {
              auto options =
                  on_device(world.device(), budget * kMiB, prefetch * kMiB);
              options.copy_at_once = at_once;
              const auto sink =
                  std::make_shared<offload::HostActivationSink>(options);
              const runtime::SavedTensorScope scope(sink);
              for (int step = 0; step < 6; ++step) {
                const auto got = step % 2 == 0 ? work.run() : work.run(side);
                for (size_t i = 0; i < got.size(); ++i) {
                  EXPECT_TRUE(torch::equal(got[i], expected[i]))
                      << "weight " << i << ", budget " << budget
                      << ", prefetch " << prefetch << ", step " << step;
                }
              }
              EXPECT_GT(sink->statistics().bytes_to_device, 0);
              EXPECT_EQ(sink->statistics().live_storages, 0);
            }
          }
        }
      },
      kLimits);
}

TEST_F(CudaActivations, TheDevicesPeakFalls) {
  run_ranks(
      1,
      [](World& world) {
        Work work(world.device(), 24);
        const auto peak_of = [&] {
          work.run();
          at::accelerator::resetPeakStats(world.device().index());
          const auto before =
              at::accelerator::getDeviceStats(world.device().index())
                  .allocated_bytes[0]
                  .current;
          work.run();
          return at::accelerator::getDeviceStats(world.device().index())
                     .allocated_bytes[0]
                     .peak -
                 before;
        };
        const int64_t plain = peak_of();
        const auto sink = std::make_shared<offload::HostActivationSink>(
            on_device(world.device(), 40 * kMiB, 16 * kMiB));
        const runtime::SavedTensorScope scope(sink);
        const int64_t offloaded = peak_of();
        EXPECT_LE(sink->statistics().peak_device_bytes, 40 * kMiB);
        EXPECT_EQ(sink->statistics().stalls, 0);
        // Saved: 24 x (x 4 MiB, before and after gelu 8 MiB each).
        EXPECT_GE(plain, 24 * 20 * kMiB);
        // The budget, what operators hold, and the gradients (2 MiB each).
        EXPECT_LE(offloaded, (40 + 48 + 2 * 24 + 16) * kMiB);
      },
      kLimits);
}

TEST_F(CudaActivations, AWrappedModelTrainsTheSame) {
  run_ranks(
      1,
      [](World& world) {
        const auto train = [&](OffloadActivations activations) {
          torch::manual_seed(5);
          torch::nn::Sequential net;
          for (int i = 0; i < 6; ++i) {
            net->push_back(torch::nn::Linear(256, 256));
            net->push_back(torch::nn::GELU());
            net->push_back(torch::nn::Dropout(0.1));
          }
          net->to(world.device());
          EngineOptions options;
          options.log_memory = false;
          options.offload.activations = activations;
          options.memory.activation_bytes = 2 * kMiB;
          auto engine = wrap(net, options);
          at::Tensor loss;
          for (int step = 0; step < 5; ++step) {
            torch::manual_seed(step);
            const auto x = torch::randn({1024, 256}, world.device());
            loss = net->forward(x).square().mean();
            engine.backward(loss);
            engine.step();
          }
          EXPECT_EQ(
              engine.activation_statistics().bytes_to_device > 0,
              activations != OffloadActivations::kOff);
          return loss.item<float>();
        };
        const float expected = train(OffloadActivations::kOff);
        EXPECT_EQ(train(OffloadActivations::kAuto), expected);
        EXPECT_EQ(train(OffloadActivations::kAll), expected);
      },
      kLimits);
}

} // namespace tessera::engine::activation_offload_gpu_test
