// SPDX-License-Identifier: Apache-2.0
// Training on the virtual device in the combinations of engine/matrix_test.cpp,
// in several orders of execution. The device computes with the CPU's kernels:
// where gradients are not clipped, all numbers are equal to the last bit.
#include "engine/matrix/comparison.h"
#include "support/vdev/vdev.h"
#include "tessera/sharding/lazy/move_module.h"

#include <gtest/gtest.h>

#include <tuple>

namespace tessera::tests::vdev::vdev_matrix_test {

namespace {

using Order = Policy::Order;

} // namespace

class Matrix : public ::testing::TestWithParam<std::tuple<Case, Policy>> {};

TEST_P(Matrix, TrainsAsPlainLibTorch) {
  const auto& [which, policy] = GetParam();
  run_ranks_on_vdev(
      which.world(),
      policy,
      [&](World& world) {
        matrix::ComparisonOptions options{
            .move = [&](auto& net) { move_module(net, world.device()); }};
        if (which.is(Case::kClipping, "clipped")) {
          // On a device the norm is added up in another order; see [Note:
          // tolerances of the matrix].
          const bool is_float = which.dtype() == at::kFloat;
          options.tolerance = is_float ? 1e-5 : 4e-3;
          options.fraction = is_float ? 1e-4 : 2e-2;
        }
        matrix::Comparison(which, world, options).run();
      },
      {.limit = std::chrono::seconds(120)});
}

INSTANTIATE_TEST_SUITE_P(
    Options,
    Matrix,
    ::testing::Combine(
        ::testing::ValuesIn(pairwise_cases()),
        ::testing::ValuesIn(policies(
            {{Order::kEager},
             {Order::kLazy},
             {Order::kRandom, 1},
             {Order::kStarve, 0, 0}}))),
    [](const auto& which) {
      return std::to_string(which.index) + "_" +
             std::get<Policy>(which.param).name();
    });

} // namespace tessera::tests::vdev::vdev_matrix_test
