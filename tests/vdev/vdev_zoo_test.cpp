// SPDX-License-Identifier: Apache-2.0
// A model of each family of the zoo trained on the virtual device, held against
// plain LibTorch on the CPU.
#include "support/vdev/vdev.h"
#include "zoo/family_fixtures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

namespace tessera::tests::vdev::vdev_zoo_test {

namespace {

using Order = Policy::Order;

/// Ranks, and the order of execution.
using How = std::pair<int, Policy>;
using Setting = std::tuple<const char*, How>;

std::vector<How> ways() {
  std::vector<How> all{{1, {Order::kLazy}}};
  for (const Policy& policy : policies({{Order::kRandom, 1}})) {
    all.emplace_back(2, policy);
  }
  return all;
}

class Families : public ::testing::TestWithParam<Setting> {};

} // namespace

TEST_P(Families, TrainAsPlainLibTorchOnTheCpu) {
  const auto& [name, tp] = GetParam();
  const auto& [ranks, policy] = tp;
  run_ranks_on_vdev(ranks, policy, [&](World& world) {
    const auto expected = zoo::train_plain_family(name, world.size());
    const auto found = zoo::train_wrapped_family(world, name);
    // The device's attention is matrix products, the CPU's one kernel: float32
    // sums in another order, over two updates. Batch norms of a few rows, which
    // MoCo has, make much of that.
    const double relative = std::string(name) == "moco" ? 1e-4 : 1e-6;
    const double tolerance = relative * std::abs(expected.losses.front());
    for (size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(found.losses[step], expected.losses[step], tolerance);
    }
    EXPECT_GT(
        std::abs(expected.losses.back() - expected.losses.front()),
        3 * tolerance);
    EXPECT_FALSE(found.weights.empty());
    for (const auto& [key, local] : found.weights) {
      const at::Tensor& weight = expected.weights.at(key);
      EXPECT_TRUE(local.allclose(weight, 1e-5, 2 * relative))
          << key << " is off by "
          << (local - weight).abs().max().item<double>();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Families,
    ::testing::Combine(
        ::testing::ValuesIn(zoo::kFamilyFixtures),
        ::testing::ValuesIn(ways())),
    [](const auto& info) {
      const auto& layout = std::get<1>(info.param);
      return std::string(std::get<0>(info.param)) + "_" +
             std::to_string(layout.first) + "_ranks_" + layout.second.name();
    });

} // namespace tessera::tests::vdev::vdev_zoo_test
