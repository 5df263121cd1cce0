// SPDX-License-Identifier: Apache-2.0
// Norms of 16-bit activations with float32 parameters on the virtual device.
#include "support/cast_counter.h"
#include "support/vdev/vdev.h"
#include "tessera/engine/engine.h"
#include "tessera/sharding/lazy/move_module.h"

#include <ATen/ops/rms_norm.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace tessera::tests::vdev::vdev_norms_test {

namespace {

using Order = Policy::Order;

constexpr int64_t kRows = 128;
constexpr int64_t kFeatures = 32;

/// RMSNorm as LibTorch's operator, between two LayerNorms.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module(
            "first",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({kFeatures})))),
        last(register_module(
            "last",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({kFeatures})))),
        middle(register_module("middle", std::make_shared<RmsNorm>())) {}
  at::Tensor forward(const at::Tensor& x) {
    return last(at::rms_norm(first(x), {kFeatures}, middle->weight, 1e-6));
  }

  struct RmsNorm : torch::nn::Module {
    RmsNorm()
        : torch::nn::Module("RmsNorm"),
          weight(register_parameter("weight", torch::ones({kFeatures}))) {}
    at::Tensor weight;
  };
  torch::nn::LayerNorm first;
  torch::nn::LayerNorm last;
  std::shared_ptr<RmsNorm> middle;
};
TORCH_MODULE(Net);

/// Four neighbours share a weight.
struct GroupNetImpl : torch::nn::Module {
  GroupNetImpl()
      : norm(register_module(
            "norm",
            torch::nn::GroupNorm(torch::nn::GroupNormOptions(4, kFeatures)))) {}
  at::Tensor forward(const at::Tensor& x) {
    return norm(x.view({-1, kFeatures, 4})).view(x.sizes());
  }
  torch::nn::GroupNorm norm;
};
TORCH_MODULE(GroupNet);

/// The parameters after three steps.
template <typename Net>
std::vector<at::Tensor> train(
    World& world,
    c10::Device device,
    const UpdateRule& rule = AdamWOptions{}) {
  torch::manual_seed(3);
  Net net;
  move_module(*net, device);
  EngineOptions options;
  options.log_memory = false;
  options.optimizer.rule = rule;
  options.precision.parameters = at::kBFloat16;
  options.sharding.groups.min_group_numel = 0;
  auto engine = wrap(net, options);
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(10 * step + world.rank());
    const at::Tensor x =
        torch::randn({kRows, kFeatures}).to(at::kBFloat16).to(device);
    const at::Tensor scale =
        torch::randn({kRows, kFeatures}).to(at::kBFloat16).to(device);
    const CastCounter casts(x.numel());
    const at::Tensor y = net(x);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    engine.backward((y * scale).sum());
    EXPECT_EQ(casts.count(), 0);
    engine.step();
  }
  std::vector<at::Tensor> result;
  engine.for_each_parameter([&](const std::string&, const at::Tensor& value) {
    EXPECT_EQ(value.scalar_type(), at::kFloat);
    result.push_back(value.detach().cpu().clone());
  });
  return result;
}

class Norms : public ::testing::TestWithParam<Policy> {};

} // namespace

TEST_P(Norms, TrainAsOnTheCpuWithoutCasts) {
  for (const int ranks : {1, 2}) {
    run_ranks_on_vdev(ranks, GetParam(), [](World& world) {
      const auto expected = train<Net>(world, c10::kCPU);
      const auto found = train<Net>(world, world.device());
      ASSERT_EQ(found.size(), 5);
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(torch::equal(found[i], expected[i])) << "parameter " << i;
      }
    });
  }
}

TEST_P(Norms, OfGroupsTrainAsOnTheCpuWithoutCasts) {
  for (const int ranks : {1, 2}) {
    run_ranks_on_vdev(ranks, GetParam(), [](World& world) {
      const SgdOptions sgd; // moves by the gradients' errors, no more
      const auto expected = train<GroupNet>(world, c10::kCPU, sgd);
      const auto found = train<GroupNet>(world, world.device(), sgd);
      ASSERT_EQ(found.size(), 2);
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-5, 1e-6))
            << "parameter " << i;
        EXPECT_GT(
            (found[i] - static_cast<double>(i == 0)).abs().max().item<double>(),
            1e-3);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Norms,
    ::testing::Values(
        Policy{Order::kEager},
        Policy{Order::kLazy},
        Policy{Order::kRandom, 1}),
    [](const auto& which) { return which.param.name(); });

} // namespace tessera::tests::vdev::vdev_norms_test
