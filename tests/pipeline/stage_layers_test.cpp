// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/stage_layers.h"

#include <gtest/gtest.h>

namespace tessera::pipeline::stage_layers_test {

namespace {

std::vector<int> local(
    PipelinePosition position,
    const std::vector<LayerCost>& costs) {
  return StageLayers(position, costs).local();
}

} // namespace

TEST(StageLayers, AreCutByCountByCostOrByAMap) {
  // The last layer comes with a head that takes as long as four.
  std::vector<LayerCost> costs(6, LayerCost{1});
  costs.back().time = 5;
  PipelinePosition last{.stages = 2, .stage = 1};
  EXPECT_EQ(local(last, costs), (std::vector{3, 4, 5}));
  last.cut = PipelineCut::kCost;
  EXPECT_EQ(local(last, costs), (std::vector{5}));
  last.piece_of_layer = {0, 0, 0, 0, 1, 1};
  EXPECT_EQ(local(last, costs), (std::vector{4, 5}));
}

TEST(StageLayers, HaveTheLayersOfAllTheirChunks) {
  std::vector<LayerCost> costs(8, LayerCost{1});
  costs.front().time = 3;
  const PipelinePosition first{
      .stages = 2, .chunks = 2, .stage = 0, .cut = PipelineCut::kCost};
  const StageLayers stage(first, costs);
  // A piece of 3 layers takes 3, as the first layer alone does.
  EXPECT_EQ(stage.begin(0), 0);
  EXPECT_EQ(stage.end(0), 1);
  EXPECT_LE(stage.end(1) - stage.begin(1), 3);
  EXPECT_TRUE(stage.has_first());
  EXPECT_FALSE(stage.has_last());
}

} // namespace tessera::pipeline::stage_layers_test
