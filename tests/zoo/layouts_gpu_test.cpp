// SPDX-License-Identifier: Apache-2.0
// Models of the zoo divided over ranks by layers, sequences, contexts, stages
// and experts, held against one rank. Ranks share devices if there are fewer.
#include "support/cuda_ranks_test.h"
#include "zoo/device_layouts.h"

namespace tessera::zoo::layouts_gpu_test {
namespace {

class LayoutsOnCuda : public tests::CudaRanksTest,
                      public ::testing::WithParamInterface<Layout> {};

} // namespace

TEST_P(LayoutsOnCuda, AreThatOfOneRank) {
  const Layout& layout = GetParam();
  layout_comparison::expect_those_of_one_rank(
      layout, device_layouts::is_chosen, [&](const auto& body) {
        tests::run_ranks(
            ranks_of(layout.parallel.sizes),
            [&](World& world) { body(world, world.device()); },
            kLimits);
      });
}

INSTANTIATE_TEST_SUITE_P(
    All,
    LayoutsOnCuda,
    ::testing::ValuesIn(device_layouts::layouts()),
    [](const auto& info) { return info.param.name; });

} // namespace tessera::zoo::layouts_gpu_test
