// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/layer_costs.h"
#include "tessera/zoo/models/registry.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tessera::zoo::layer_costs_test {
namespace {

/// Numbers in the matrices of a module.
double matrices(const torch::nn::Module& module) {
  double count = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    count += parameter.dim() == 2 ? static_cast<double>(parameter.numel()) : 0;
  }
  return count;
}

TransformerLayerOptions layer_options() {
  TransformerLayerOptions options;
  options.norm.features = 24;
  options.attention.features = 24;
  options.attention.heads = 6;
  options.attention.kv_heads = 2;
  options.attention.head_features = 5;
  options.feed_forward.features = 24;
  options.feed_forward.inner = 40;
  return options;
}

} // namespace

TEST(LayerCosts, AreTheWeightsThatATokenIsMultipliedBy) {
  const TransformerLayerOptions plain = layer_options();
  TransformerLayerOptions gated = plain;
  gated.feed_forward.gated = true;
  TransformerLayerOptions cross = plain;
  cross.cross_attention = plain.attention;
  cross.cross_attention->memory_features = 16;
  const std::vector<TransformerLayerOptions> layers{plain, gated, cross};
  const auto costs = layer_costs(layers, 1000);
  for (size_t i = 0; i < layers.size(); ++i) {
    EXPECT_EQ(
        costs[i].time,
        matrices(*TransformerLayer(LayerContext(), layers[i])) +
            (i == 2 ? 1000 : 0))
        << i;
  }
}

TEST(LayerCosts, CountTheExpertsThatATokenUses) {
  TransformerLayerOptions layer = layer_options();
  ExpertsOptions experts;
  experts.expert = layer.feed_forward;
  experts.experts = 8;
  experts.experts_per_token = 2;
  layer.experts = experts;
  const double dense = layer_costs({layer_options()})[0].time;
  const double expert = 2 * 24 * 40;
  EXPECT_EQ(layer_costs({layer})[0].time, dense + expert + 8 * 24);
}

TEST(LayerCosts, CutAModelWithALargeVocabularyBeforeItsHead) {
  // The head is worth 8 layers' products.
  const auto config = nlohmann::json::parse(R"({"model_type": "gpt2",
      "vocab_size": 1152, "n_embd": 12, "n_layer": 8, "n_head": 2})");
  const auto last_stage = [&](pipeline::PipelineCut cut) {
    const pipeline::PipelinePosition position{
        .stages = 2, .stage = 1, .cut = cut};
    const auto model = from_config(
        config,
        {.architecture = "GPT2LMHeadModel",
         .context = LayerContext().on_stage(position)});
    return model->stage().local().size();
  };
  EXPECT_EQ(last_stage(pipeline::PipelineCut::kLayers), 4U);
  EXPECT_EQ(last_stage(pipeline::PipelineCut::kCost), 1U);
}

} // namespace tessera::zoo::layer_costs_test
