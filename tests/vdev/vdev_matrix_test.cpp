// SPDX-License-Identifier: Apache-2.0
// Training on the virtual device in the combinations of engine/matrix_test.cpp,
// in several orders of execution. The device computes with the CPU's kernels:
// all numbers must be equal to the last bit.
#include "engine/matrix/comparison.h"
#include "support/vdev/vdev.h"

#include <gtest/gtest.h>

#include <tuple>

namespace tessera::tests::vdev::vdev_matrix_test {

namespace {

std::vector<Policy> policies() {
  using Order = Policy::Order;
  return {
      {Order::kEager},
      {Order::kLazy},
      {Order::kRandom, 1},
      {Order::kStarve, 0, 0}};
}

} // namespace

class Matrix : public ::testing::TestWithParam<std::tuple<Case, Policy>> {};

TEST_P(Matrix, TrainsAsPlainLibTorch) {
  const auto& [which, policy] = GetParam();
  run_ranks_on_vdev(
      which.world(),
      policy,
      [&](World& world) {
        const matrix::ComparisonOptions options{
            .move = [&](auto& net) { move_to(net, world.device()); }};
        matrix::Comparison(which, world, options).run();
      },
      {.limit = std::chrono::seconds(120)});
}

INSTANTIATE_TEST_SUITE_P(
    Options,
    Matrix,
    ::testing::Combine(
        ::testing::ValuesIn(pairwise_cases()),
        ::testing::ValuesIn(policies())),
    [](const auto& which) {
      return std::to_string(which.index) + "_" +
             std::get<Policy>(which.param).name();
    });

} // namespace tessera::tests::vdev::vdev_matrix_test
