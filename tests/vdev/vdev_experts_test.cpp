// SPDX-License-Identifier: Apache-2.0
// Experts on the virtual device: numbers as on the CPU, and how often the host
// waits for the device.
#include "support/vdev/vdev.h"
#include "tessera/sharding/expert_parallel/expert_exchange.h"
#include "tessera/sharding/expert_parallel/expert_router.h"
#include "vdev/waits.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

namespace tessera::tests::vdev::vdev_experts_test {

namespace {

using Order = Policy::Order;

constexpr int64_t kTokens = 24;
constexpr int64_t kFeatures = 8;
constexpr int64_t kExperts = 4;

struct Layer {
  Layer(
      World& world,
      c10::Device device,
      const sharding::RouterOptions& router_options)
      : options(router_options),
        group(world.new_communicator("expert", device)) {
    torch::manual_seed(1);
    router = leaf({kFeatures, kExperts}, device);
    experts = leaf({kExperts, kFeatures, kFeatures}, device);
    torch::manual_seed(2 + world.rank());
    tokens = leaf({kTokens, kFeatures}, device);
  }
  static at::Tensor leaf(at::IntArrayRef sizes, c10::Device device) {
    return torch::randn(sizes).to(device).requires_grad_();
  }
  void forward() {
    const auto [begin, length] =
        sharding::local_experts(kExperts, group->rank(), group->size());
    result = sharding::apply_experts(
        tokens,
        sharding::route_tokens(tokens.mm(router), options),
        kExperts,
        group->size() > 1 ? group.get() : nullptr,
        [&, first = begin](int64_t local, const at::Tensor& rows) {
          return torch::tanh(rows.mm(experts[first + local]));
        });
  }
  std::vector<at::Tensor> numbers() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& t :
         {result.detach(), tokens.grad(), router.grad(), experts.grad()}) {
      all.push_back(t.cpu());
    }
    return all;
  }

  sharding::RouterOptions options;
  std::unique_ptr<Communicator> group;
  at::Tensor router;
  at::Tensor experts;
  at::Tensor tokens;
  at::Tensor result;
};

class Experts : public ::testing::TestWithParam<Policy> {};

} // namespace

TEST_P(Experts, WaitOnceForTheDeviceAndComputeAsTheCpu) {
  for (const int ranks : {1, 2}) {
    for (const bool drops : {false, true}) {
      run_ranks_on_vdev(ranks, GetParam(), [&](World& world) {
        sharding::RouterOptions options{.experts_per_token = 2};
        if (drops) {
          options.capacity_factor = 0.6;
        }
        Layer on_cpu(world, c10::kCPU, options);
        on_cpu.forward();
        on_cpu.result.sum().backward();
        Layer layer(world, world.device(), options);
        layer.forward(); // connects the group
        layer.result.reset();
        EXPECT_EQ(waits_of([&] { layer.forward(); }), (Waits{1, 0}));
        const at::Tensor sum = layer.result.sum();
        EXPECT_EQ(waits_of([&] { sum.backward(); }), (Waits{0, 0}));
        const auto expected = on_cpu.numbers();
        const auto found = layer.numbers();
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(torch::equal(found[i], expected[i])) << i;
        }
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Experts,
    ::testing::Values(
        Policy{Order::kEager},
        Policy{Order::kLazy},
        Policy{Order::kRandom, 1}),
    [](const auto& which) { return which.param.name(); });

} // namespace tessera::tests::vdev::vdev_experts_test
