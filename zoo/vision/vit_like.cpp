// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/vision/vit_like.h"

#include "tessera/zoo/models/layer_stack.h"
#include "tessera/zoo/vision/image_fields.h"

namespace tessera::zoo {

TransformerLayerOptions vit_layer(
    const ConfigFields& fields,
    const std::string& prefix) {
  const auto size = [&](const char* name) {
    return fields.size({(prefix + name).c_str()});
  };
  TransformerLayerOptions layer;
  layer.norm.features = size("hidden_size");
  layer.norm.eps = fields.positive({"layer_norm_eps"}, 1e-12);
  layer.dropout = fields.probability({"hidden_dropout_prob"});
  AttentionOptions& attention = layer.attention;
  attention.features = layer.norm.features;
  attention.heads = fields.heads(
      {(prefix + "num_attention_heads").c_str()},
      layer.norm.features,
      (prefix + "hidden_size").c_str());
  attention.query_bias = attention.key_bias = attention.value_bias =
      fields.get<bool>({"qkv_bias"}, true);
  attention.dropout = fields.probability({"attention_probs_dropout_prob"});
  attention.deviation = fields.deviation({"initializer_range"});
  layer.feed_forward.features = layer.norm.features;
  layer.feed_forward.inner = size("intermediate_size");
  layer.feed_forward.activation = fields.activation({"hidden_act"}, "gelu");
  layer.feed_forward.deviation = attention.deviation;
  return layer;
}

ImageEncoderConfig vit_like_config(const ConfigFields& fields) {
  ImageEncoderConfig config;
  const TransformerLayerOptions layer = vit_layer(fields);
  config.norm = layer.norm;
  config.patches = patch_fields(fields, 224, 16);
  config.patches.features = layer.norm.features;
  config.embedding_dropout = layer.dropout;
  config.layers = equal_layers(layer, fields.count({"num_hidden_layers"}));
  config.deviation = config.patches.deviation;
  return config;
}

std::vector<NameRule> vit_layer_names(
    const std::string& foreign,
    const std::string& native) {
  const std::string attention = foreign + ".*.attention.";
  return {
      {attention + "attention.query", {native + ".*.attention.query"}},
      {attention + "attention.key", {native + ".*.attention.key"}},
      {attention + "attention.value", {native + ".*.attention.value"}},
      {attention + "output.dense", {native + ".*.attention.output"}},
      {foreign + ".*.layernorm_before", {native + ".*.attention_norm"}},
      {foreign + ".*.layernorm_after", {native + ".*.feed_forward_norm"}},
      {foreign + ".*.intermediate.dense", {native + ".*.feed_forward.up"}},
      {foreign + ".*.output.dense", {native + ".*.feed_forward.down"}}};
}

NameTable vit_like_names(bool is_base) {
  NameTable table;
  table.prefix = "vit.";
  table.is_base = is_base;
  table.base = vit_layer_names("encoder.layer", "layers");
  table.base.insert(
      table.base.end(),
      {{"embeddings.cls_token", {"embeddings.class_token"}},
       {"embeddings.mask_token", {"embeddings.mask_token"}},
       {"embeddings.position_embeddings", {"embeddings.positions"}},
       {"embeddings.patch_embeddings.projection", {"embeddings.projection"}},
       {"layernorm", {"norm"}},
       {"pooler.dense", {"pooler"}}});
  // Weights of other heads, including those of MAE and MoCo.
  table.ignored = {
      "embeddings.mask_token",
      "pooler.*",
      "classifier.*",
      "decoder.*",
      "momentum.*",
      "projection.*",
      "prediction.*"};
  return table;
}

} // namespace tessera::zoo
