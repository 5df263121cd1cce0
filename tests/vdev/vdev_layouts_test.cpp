// SPDX-License-Identifier: Apache-2.0
// Models of the zoo on the virtual device, divided over ranks by layers, stages
// and experts, held against one rank.
#include "support/vdev/vdev.h"
#include "zoo/layout_comparison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <tuple>

namespace tessera::tests::vdev::vdev_layouts_test {

namespace {

using Order = Policy::Order;
using zoo::Layout;

/// Of the zoo's layouts those of up to four ranks, but the ones that only
/// differ in sizes.
std::vector<Layout> layouts() {
  constexpr const char* kChosen[] = {
      "tensor2",
      "pipeline2",
      "pipeline4_gpipe",
      "pipeline2_interleaved",
      "pipeline2_shard2_zb",
      "tensor2_pipeline2_sequence",
      "expert2",
      "context2_ring",
      "tensor2_pipeline2_state_on_host",
      "tensor2_pipeline2_float16"};
  std::vector<Layout> chosen;
  for (const Layout& layout : zoo::pairs()) {
    if (std::find(std::begin(kChosen), std::end(kChosen), layout.name) !=
        std::end(kChosen)) {
      chosen.push_back(layout);
    }
  }
  return chosen;
}

/// The simplest of those with the same operators.
bool is_chosen(const zoo::Subject& subject) {
  return std::string(subject.name) == "gpt" || subject.has_experts;
}

class Layouts : public ::testing::TestWithParam<std::tuple<Layout, Policy>> {};

} // namespace

TEST_P(Layouts, AreThatOfOneRank) {
  const auto& [layout, policy] = GetParam();
  zoo::layout_comparison::expect_those_of_one_rank(
      layout,
      is_chosen,
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
        ::testing::ValuesIn(layouts()),
        ::testing::ValuesIn(policies({{Order::kLazy}, {Order::kRandom, 1}}))),
    [](const auto& info) {
      return std::get<Layout>(info.param).name + "_" +
             std::get<Policy>(info.param).name();
    });

} // namespace tessera::tests::vdev::vdev_layouts_test
