// SPDX-License-Identifier: Apache-2.0
#pragma once
// Saved tensors of a device that rest on the host: copies in both directions
// run beside the computation, and must not change a bit.

#include "support/ranks.h"
#include "tessera/engine/engine.h"
#include "tessera/offload/activations/host_activation_sink.h"
#include "tessera/runtime/memory/saved_tensor_hooks.h"
#include "tessera/runtime/streams/stream_marks.h"
#include "tessera/sharding/lazy/move_module.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

namespace tessera::tests::activation_cases {

/// x is [rows, narrow]; the weights are [narrow, wide] with wide = 2 narrow.
struct Sizes {
  int64_t rows = 0;
  int64_t narrow = 0;

  /// Of x.
  int64_t unit() const {
    return rows * narrow * static_cast<int64_t>(sizeof(float));
  }
};

/// Residual layers; with `side`, every other one on that stream.
inline at::Tensor layers(
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
  Work(c10::Device device, const Sizes& sizes, int count = 8) {
    torch::manual_seed(7);
    const double scale = std::sqrt(static_cast<double>(3 * sizes.narrow));
    for (int i = 0; i < count; ++i) {
      weights.push_back(
          (torch::randn({sizes.narrow, 2 * sizes.narrow}).to(device) / scale)
              .requires_grad_());
    }
    x = torch::randn({sizes.rows, sizes.narrow}).to(device);
  }
  /// Gradients of all weights.
  std::vector<at::Tensor> run(const std::optional<c10::Stream>& side = {}) {
    drop_gradients();
    layers(x, weights, side).square().mean().backward();
    std::vector<at::Tensor> gradients;
    for (const auto& weight : weights) {
      gradients.push_back(weight.grad());
    }
    return gradients;
  }
  void drop_gradients() {
    for (auto& weight : weights) {
      weight.mutable_grad() = at::Tensor();
    }
  }
  std::vector<at::Tensor> weights;
  at::Tensor x;
};

inline offload::HostActivationSinkOptions sink_options(
    c10::Device device,
    int64_t device_bytes,
    int64_t prefetch_bytes) {
  offload::HostActivationSinkOptions options;
  options.device = device;
  options.device_bytes = device_bytes;
  options.prefetch_bytes = prefetch_bytes;
  options.min_tensor_bytes = 0;
  return options;
}

/// Steps on one stream and on two in turn.
inline void expect_equal_bits(World& world, const Sizes& sizes) {
  Work work(world.device(), sizes);
  const auto side = c10::impl::getDeviceGuardImpl(world.device().type())
                        ->getStreamFromGlobalPool(world.device(), false);
  const auto expected = work.run();
  const int64_t unit = sizes.unit();
  for (const int64_t budget : {int64_t{0}, 3 * unit, 15 * unit / 2}) {
    for (const int64_t prefetch : {int64_t{0}, 2 * unit, 16 * unit}) {
      for (const bool at_once : {false, true}) {
        auto options = sink_options(world.device(), budget, prefetch);
        options.copy_at_once = at_once;
        const auto sink =
            std::make_shared<offload::HostActivationSink>(options);
        const runtime::SavedTensorScope scope(sink);
        for (int step = 0; step < 6; ++step) {
          const auto got = step % 2 == 0 ? work.run() : work.run(side);
          for (size_t i = 0; i < got.size(); ++i) {
            EXPECT_TRUE(torch::equal(got[i], expected[i]))
                << "weight " << i << ", budget " << budget << ", prefetch "
                << prefetch << ", step " << step;
          }
        }
        EXPECT_GT(sink->statistics().bytes_to_device, 0);
        EXPECT_EQ(sink->statistics().live_storages, 0);
      }
    }
  }
}

inline void expect_lower_peak(World& world, const Sizes& sizes) {
  constexpr int kCount = 24;
  Work work(world.device(), sizes, kCount);
  const auto index = world.device().index();
  const auto peak_of = [&] {
    work.run();
    work.drop_gradients();
    at::accelerator::resetPeakStats(index);
    const auto before =
        at::accelerator::getDeviceStats(index).allocated_bytes[0].current;
    work.run();
    return at::accelerator::getDeviceStats(index).allocated_bytes[0].peak -
           before;
  };
  const int64_t unit = sizes.unit();
  const int64_t plain = peak_of();
  const auto sink = std::make_shared<offload::HostActivationSink>(
      sink_options(world.device(), 10 * unit, 4 * unit));
  const runtime::SavedTensorScope scope(sink);
  const int64_t offloaded = peak_of();
  EXPECT_LE(sink->statistics().peak_device_bytes, 10 * unit);
  EXPECT_EQ(sink->statistics().stalls, 0);
  // Saved: x of each layer, before and after gelu twice as much each.
  EXPECT_GE(plain, kCount * 5 * unit);
  // The budget, what operators hold, the gradients, and what comes back.
  const auto gradients =
      kCount * static_cast<int64_t>(work.weights.front().nbytes());
  EXPECT_LE(offloaded, (10 + 12 + 4) * unit + gradients);
}

/// @param width of a layer. @param rows of a batch.
inline void expect_same_training(
    World& world,
    int64_t width,
    int64_t rows,
    int64_t activation_bytes) {
  const auto train = [&](std::optional<MemoryTier> activations) {
    torch::manual_seed(5);
    torch::nn::Sequential net;
    for (int i = 0; i < 6; ++i) {
      net->push_back(torch::nn::Linear(width, width));
      net->push_back(torch::nn::GELU());
      net->push_back(torch::nn::Dropout(0.1));
    }
    move_module(*net, world.device());
    EngineOptions options;
    options.log_memory = false;
    options.placement.activations = activations;
    options.offload.min_tensor_bytes = 0;
    options.memory.activation_bytes = activation_bytes;
    auto engine = wrap(net, options);
    at::Tensor loss;
    for (int step = 0; step < 5; ++step) {
      torch::manual_seed(10 * step + world.rank());
      const auto x = torch::randn({rows, width}, world.device());
      loss = net->forward(x).square().mean();
      engine.backward(loss);
      engine.step();
    }
    EXPECT_EQ(
        engine.stats().activations.bytes_to_device > 0,
        activations != MemoryTier::kDevice);
    return loss.item<float>();
  };
  const float expected = train(MemoryTier::kDevice);
  EXPECT_EQ(train(std::nullopt), expected);
  EXPECT_EQ(train(MemoryTier::kHost), expected);
}

} // namespace tessera::tests::activation_cases
