// SPDX-License-Identifier: Apache-2.0
// Models of the zoo on the virtual device, divided over ranks by layers,
// sequences, contexts, stages and experts, held against one rank.
#include "support/vdev/vdev.h"
#include "zoo/device_layouts.h"

#include <gtest/gtest.h>

#include <tuple>

namespace tessera::tests::vdev::vdev_layouts_test {

namespace {

using Order = Policy::Order;
using zoo::Layout;

class Layouts : public ::testing::TestWithParam<std::tuple<Layout, Policy>> {};

} // namespace

TEST_P(Layouts, AreThatOfOneRank) {
  const auto& [layout, policy] = GetParam();
  zoo::layout_comparison::expect_those_of_one_rank(
      layout,
      zoo::device_layouts::is_chosen,
      [&, &layout = layout, &policy = policy](const auto& body) {
        run_ranks_on_vdev(
            zoo::ranks_of(layout.parallel.sizes), policy, [&](World& world) {
              body(world, world.device());
            });
      });
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Layouts,
    ::testing::Combine(
        ::testing::ValuesIn(zoo::device_layouts::layouts()),
        ::testing::ValuesIn(policies({{Order::kLazy}, {Order::kRandom, 1}}))),
    [](const auto& info) {
      return std::get<Layout>(info.param).name + "_" +
             std::get<Policy>(info.param).name();
    });

} // namespace tessera::tests::vdev::vdev_layouts_test
