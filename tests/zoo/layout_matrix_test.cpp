// SPDX-License-Identifier: Apache-2.0
// Models of the zoo trained under every layout of ranks.
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "zoo/layout_comparison.h"

#include <gtest/gtest.h>

namespace tessera::zoo::layout_matrix_test {
namespace {

class LayoutMatrix : public ::testing::TestWithParam<Layout> {};

} // namespace

TEST_P(LayoutMatrix, IsThatOfOneRank) {
  const Layout& layout = GetParam();
  for (const Subject& subject : kSubjects) {
    if (!layout_comparison::takes(subject, layout)) {
      continue;
    }
    const TemporaryFolder folder;
    const auto path = folder.path() / "model";
    layout_comparison::save_subject(subject, layout, path);
    tests::run_ranks(ranks_of(layout.parallel.sizes), [&](World& world) {
      layout_comparison::expect_that_of_one_rank(world, path, subject, layout);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    LayoutMatrix,
    ::testing::ValuesIn(layouts()),
    [](const auto& info) { return info.param.name; });

} // namespace tessera::zoo::layout_matrix_test
