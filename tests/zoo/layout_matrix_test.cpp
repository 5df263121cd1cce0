// SPDX-License-Identifier: Apache-2.0
// Models of the zoo trained under every layout of ranks.
#include "support/ranks.h"
#include "zoo/layout_comparison.h"

#include <gtest/gtest.h>

namespace tessera::zoo::layout_matrix_test {
namespace {

class LayoutMatrix : public ::testing::TestWithParam<Layout> {};

} // namespace

TEST_P(LayoutMatrix, IsThatOfOneRank) {
  const Layout& layout = GetParam();
  layout_comparison::expect_those_of_one_rank(
      layout,
      [](const Subject&) { return true; },
      [&](const auto& body) {
        tests::run_ranks(ranks_of(layout.parallel.sizes), [&](World& world) {
          body(world, at::kCPU);
        });
      });
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    LayoutMatrix,
    ::testing::ValuesIn(layouts()),
    [](const auto& info) { return info.param.name; });

} // namespace tessera::zoo::layout_matrix_test
