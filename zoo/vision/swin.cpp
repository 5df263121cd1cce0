// SPDX-License-Identifier: Apache-2.0
// Swin (arXiv:2103.14030): its config.json and tensor names.

#include "tessera/zoo/layers/drop_path.h"
#include "tessera/zoo/models/families.h"
#include "tessera/zoo/vision/image_fields.h"
#include "tessera/zoo/vision/swin_model.h"

#include <numeric>
#include <string>
#include <utility>

namespace tessera::zoo {

namespace {

constexpr int64_t kMostSwinFeatures = int64_t{1} << 24;
constexpr int64_t kMostLayers = 10000;
constexpr int64_t kMostWindowPixels = 1024; // of a window or a stride

int64_t bounded(const ConfigFields& fields, const char* name, int64_t usual) {
  const int64_t value = fields.size({name}, usual);
  TESSERA_CHECK(
      value <= kMostWindowPixels,
      "{}: '{}' is {}; it must be at most {}",
      fields.origin(),
      name,
      value,
      kMostWindowPixels);
  return value;
}

/// Options that all layers share.
WindowLayerOptions common_layer(const ConfigFields& fields) {
  WindowLayerOptions layer;
  layer.norm.eps = fields.positive({"layer_norm_eps"}, 1e-5);
  layer.window = bounded(fields, "window_size", 7);
  layer.dropout = fields.probability({"hidden_dropout_prob"});
  layer.deviation = fields.deviation({"initializer_range"});
  AttentionOptions& attention = layer.attention;
  attention.query_bias = attention.key_bias = attention.value_bias =
      fields.get<bool>({"qkv_bias"}, true);
  attention.dropout = fields.probability({"attention_probs_dropout_prob"});
  attention.deviation = layer.deviation;
  layer.feed_forward.activation = fields.activation({"hidden_act"}, "gelu");
  layer.feed_forward.deviation = layer.deviation;
  return layer;
}

std::vector<int64_t> depths_of(const ConfigFields& fields) {
  return number_list(fields, "depths", {2, 2, 6, 2}, kMostLayers);
}

std::vector<WindowLayerOptions> layers_of(const ConfigFields& fields) {
  const std::vector<int64_t> depths = depths_of(fields);
  const std::vector<int64_t> heads =
      number_list(fields, "num_heads", {3, 6, 12, 24}, kMostSwinFeatures);
  const int64_t count =
      std::accumulate(depths.begin(), depths.end(), int64_t{0});
  TESSERA_CHECK(
      heads.size() == depths.size() && count <= kMostLayers,
      "{}: 'depths' is {} and 'num_heads' {}; they must have the same length, with at most {} layers in total",
      fields.origin(),
      depths,
      heads,
      kMostLayers);
  const std::vector<double> drop_paths =
      drop_path_schedule(fields.probability({"drop_path_rate"}, 0.1), count);
  const double ratio = fields.positive({"mlp_ratio"}, 4.0);
  int64_t features = fields.size({"embed_dim"}, 96);
  std::vector<WindowLayerOptions> layers;
  for (size_t s = 0; s < depths.size(); ++s, features *= 2) {
    const double inner = ratio * static_cast<double>(features);
    TESSERA_CHECK(
        features <= kMostSwinFeatures && inner >= 1 &&
            inner <= static_cast<double>(kMostSwinFeatures),
        "{}: Swin stage {} has {} features, and {} inside its feed-forward; at most {} are allowed: see embed_dim, depths and mlp_ratio",
        fields.origin(),
        s,
        features,
        inner,
        kMostSwinFeatures);
    WindowLayerOptions layer = common_layer(fields);
    layer.norm.features = features;
    layer.attention.features = features;
    layer.attention.heads = heads[s];
    layer.feed_forward.features = features;
    layer.feed_forward.inner = static_cast<int64_t>(inner);
    for (int64_t i = 0; i < depths[s]; ++i) {
      layer.shift = i % 2 == 0 ? 0 : layer.window / 2;
      layer.drop_path = drop_paths[layers.size()];
      layer.merges = i + 1 == depths[s] && s + 1 < depths.size();
      layers.push_back(layer);
    }
  }
  return layers;
}

SwinModelConfig swin_config(const ConfigFields& fields) {
  SwinModelConfig config;
  config.layers = layers_of(fields);
  config.norm = config.layers.back().norm;
  config.patches = patch_fields(fields, 224, 4);
  config.patches.features = config.layers.front().norm.features;
  config.patches.class_token = false;
  config.patches.pads = true;
  config.patches.norm = NormOptions{.features = config.patches.features};
  config.patches.positions =
      fields.get<bool>({"use_absolute_embeddings"}, false)
          ? PatchPositions::kLearned
          : PatchPositions::kNone;
  config.embedding_dropout = fields.probability({"hidden_dropout_prob"});
  config.encoder_stride = bounded(fields, "encoder_stride", 32);
  config.classifier = ClassifierOptions::from_config(fields);
  config.deviation = config.patches.deviation;
  return config;
}

void add_layer_names(
    NameTable& table,
    const std::string& foreign,
    const std::string& native) {
  const std::string inside = foreign + ".attention.self.";
  table.base.insert(
      table.base.end(),
      {{inside + "query", {native + ".attention.query"}},
       {inside + "key", {native + ".attention.key"}},
       {inside + "value", {native + ".attention.value"}},
       {inside + "relative_position_bias_table", {native + ".position_bias"}},
       {foreign + ".attention.output.dense", {native + ".attention.output"}},
       {foreign + ".layernorm_before", {native + ".attention_norm"}},
       {foreign + ".layernorm_after", {native + ".feed_forward_norm"}},
       {foreign + ".intermediate.dense", {native + ".feed_forward.up"}},
       {foreign + ".output.dense", {native + ".feed_forward.down"}}});
}

NameTable swin_names(const std::vector<int64_t>& depths, bool is_base) {
  NameTable table;
  table.prefix = "swin.";
  table.is_base = is_base;
  table.base = {
      {"embeddings.mask_token", {"embeddings.mask_token"}},
      {"embeddings.position_embeddings", {"embeddings.positions"}},
      {"embeddings.patch_embeddings.projection", {"embeddings.projection"}},
      {"embeddings.norm", {"embeddings.norm"}},
      {"layernorm", {"norm"}}};
  int64_t number = 0; // over all Swin stages
  for (size_t s = 0; s < depths.size(); ++s) {
    const std::string stage = "encoder.layers." + std::to_string(s);
    for (int64_t i = 0; i < depths[s]; ++i, ++number) {
      add_layer_names(
          table,
          stage + ".blocks." + std::to_string(i),
          "layers." + std::to_string(number));
    }
    const std::string merge =
        "layers." + std::to_string(number - 1) + ".merge.";
    table.base.push_back({stage + ".downsample.norm", {merge + "norm"}});
    table.base.push_back(
        {stage + ".downsample.reduction", {merge + "reduction"}});
  }
  table.head = {{"classifier", {"classifier"}}, {"decoder.0", {"decoder"}}};
  // Buffers of old versions, and weights of other heads.
  table.ignored = {
      "encoder.layers.*.blocks.*.attention.self.relative_position_index",
      "embeddings.mask_token",
      "classifier.*",
      "decoder.*"};
  return table;
}

MakeModel make_swin(ImageHead head) {
  return [head](
             const ConfigFields& fields,
             const LayerContext& context,
             nlohmann::json json) -> std::shared_ptr<Model> {
    return std::make_shared<SwinModel>(
        swin_config(fields),
        head,
        context,
        std::move(json),
        swin_names(depths_of(fields), head == ImageHead::kBase));
  };
}

} // namespace

ModelFamily swin_family() {
  return {
      "swin",
      {{"SwinForImageClassification", make_swin(ImageHead::kClassification)},
       {"SwinModel", make_swin(ImageHead::kBase)},
       {"SwinForMaskedImageModeling", make_swin(ImageHead::kMasked)}}};
}

} // namespace tessera::zoo
