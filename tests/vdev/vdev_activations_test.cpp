// SPDX-License-Identifier: Apache-2.0
// Saved tensors of the virtual device that rest on the host: copies in both
// directions run beside the computation, and must not change a bit.
#include "support/vdev/vdev.h"
#include "tessera/engine/engine.h"
#include "tessera/offload/host_activation_sink.h"
#include "tessera/runtime/memory/saved_tensor_hooks.h"
#include "tessera/runtime/memory/stream_marks.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tessera::tests::vdev::vdev_activations_test {

namespace {

using Order = Policy::Order;

constexpr int64_t kKiB = 1 << 10;

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
  explicit Work(c10::Device device) {
    torch::manual_seed(7);
    for (int i = 0; i < 8; ++i) {
      weights.push_back(
          (torch::randn({32, 64}).to(device) / 10).requires_grad_());
    }
    x = torch::randn({64, 32}).to(device); // 8 KiB
  }
  /// Gradients of all weights.
  std::vector<at::Tensor> run(const std::optional<c10::Stream>& side = {}) {
    for (auto& weight : weights) {
      weight.mutable_grad() = at::Tensor();
    }
    layers(x, weights, side).square().mean().backward();
    std::vector<at::Tensor> gradients;
    for (const auto& weight : weights) {
      gradients.push_back(weight.grad().cpu());
    }
    return gradients;
  }
  std::vector<at::Tensor> weights;
  at::Tensor x;
};

class Activations : public ::testing::TestWithParam<Policy> {};

void compare(World& world, bool on_side) {
  Work work(world.device());
  const auto side = c10::impl::getDeviceGuardImpl(world.device().type())
                        ->getStreamFromGlobalPool(world.device(), false);
  const auto expected = work.run();
  for (const int64_t budget : {0, 24, 60}) {
    for (const int64_t prefetch : {0, 16, 128}) {
      for (const bool at_once : {false, true}) {
        offload::HostActivationSinkOptions options;
        options.device = world.device();
        options.device_bytes = budget * kKiB;
        options.prefetch_bytes = prefetch * kKiB;
        options.min_tensor_bytes = 0;
        options.copy_at_once = at_once;
        const auto sink =
            std::make_shared<offload::HostActivationSink>(options);
        const runtime::SavedTensorScope scope(sink);
        for (int step = 0; step < 4; ++step) {
          const auto got =
              on_side && step % 2 == 1 ? work.run(side) : work.run();
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

} // namespace

TEST_P(Activations, EqualBitForBitOnOneStream) {
  run_ranks_on_vdev(1, GetParam(), [](World& world) { compare(world, false); });
}

TEST_P(Activations, EqualBitForBitOnTwoStreams) {
  run_ranks_on_vdev(1, GetParam(), [](World& world) { compare(world, true); });
}

TEST_P(Activations, AWrappedModelTrainsTheSame) {
  run_ranks_on_vdev(2, GetParam(), [](World& world) {
    const auto train = [&](OffloadActivations activations) {
      torch::manual_seed(5);
      torch::nn::Sequential net;
      for (int i = 0; i < 4; ++i) {
        net->push_back(torch::nn::Linear(32, 32));
        net->push_back(torch::nn::GELU());
        net->push_back(torch::nn::Dropout(0.1));
      }
      move_to(*net, world.device());
      EngineOptions options;
      options.log_memory = false;
      options.offload.activations = activations;
      options.offload.min_tensor_bytes = 0;
      options.memory.activation_bytes = 64 * kKiB;
      auto engine = wrap(net, options);
      at::Tensor loss;
      for (int step = 0; step < 5; ++step) {
        torch::manual_seed(10 * step + world.rank());
        const auto x = torch::randn({64, 32}, world.device());
        loss = net->forward(x).square().mean();
        engine.backward(loss);
        engine.step();
      }
      return loss.item<float>();
    };
    const float expected = train(OffloadActivations::kOff);
    EXPECT_EQ(train(OffloadActivations::kAuto), expected);
    EXPECT_EQ(train(OffloadActivations::kAll), expected);
  });
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Activations,
    ::testing::Values(
        Policy{Order::kEager},
        Policy{Order::kLazy},
        Policy{Order::kRandom, 1},
        Policy{Order::kRandom, 2},
        Policy{Order::kStarve, 0, 0}),
    [](const auto& which) { return which.param.name(); });

} // namespace tessera::tests::vdev::vdev_activations_test
