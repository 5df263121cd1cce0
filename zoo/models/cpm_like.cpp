// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/cpm_like.h"

#include "tessera/zoo/formats/model_center_names.h"
#include "tessera/zoo/models/t5_like.h"

#include <cmath>
#include <memory>
#include <utility>

namespace tessera::zoo {

namespace {

/// ModelCenter's gelu is the exact one, unlike T5's.
std::string cpm_activation(const ConfigFields& fields) {
  const auto name =
      fields.get<std::string>({"feed_forward_proj"}, "gated-gelu");
  TESSERA_CHECK(
      name == "gated-gelu" || name == "gated-gelu_new",
      "{}: 'feed_forward_proj' is {}; only gated-gelu and gated-gelu_new are implemented",
      fields.origin(),
      name);
  return name == "gated-gelu" ? "gelu" : "gelu_new";
}

NameTable cpm_names(
    const std::string& prefix,
    bool has_head,
    bool has_prompts) {
  NameTable table{
      .prefix = prefix,
      .base =
          {{"input_embedding", {"embeddings.tokens"}},
           {"position_bias.relative_attention_bias",
            {"encoder.relative_bias.weight"}}},
      .head = {{"output_projection", {"head"}}},
      .is_base = !has_head,
      .ignored = {"output_projection.*"}};
  if (has_prompts) {
    table.base.push_back({"prompt_embedding", {"embeddings.prompts"}});
  }
  add_model_center_stack(table, "encoder", "encoder");
  return table;
}

} // namespace

EncoderDecoderConfig cpm_like_config(
    const ConfigFields& fields,
    const CpmLikeDefaults& defaults) {
  const std::string activation = cpm_activation(fields);
  EncoderDecoderConfig model = t5_like_config(
      fields,
      {.activation = "gated-gelu", .buckets = defaults.buckets, .dropout = 0});
  const bool length_scale =
      fields.get<bool>({"length_scale"}, defaults.length_scale);
  const bool attn_scale = fields.get<bool>({"attn_scale"}, defaults.attn_scale);
  const double deviation =
      fields.deviation({"initializer_range"}, length_scale ? 1 : 0.02);
  model.tied_head = fields.get<bool>({"tie_word_embeddings"}, defaults.is_tied);
  model.dropout = 0;
  if (length_scale) {
    model.head_scale = 1 / std::sqrt(static_cast<double>(model.features));
  }
  const auto change = [&](AttentionOptions& attention) {
    attention.deviation = attention.query_deviation = deviation;
    attention.output_deviation = deviation;
    attention.length_scale = length_scale;
    if (attn_scale) {
      attention.scale.reset();
    }
  };
  for (RelativeStackOptions* half : {&model.encoder, &model.decoder}) {
    half->bias_deviation = 1;
    half->dropout = 0;
    for (TransformerLayerOptions& layer : half->layers) {
      change(layer.attention);
      if (layer.cross_attention) {
        change(*layer.cross_attention);
      }
      layer.feed_forward.gated = true;
      layer.feed_forward.activation = activation;
      layer.feed_forward.dropout = 0;
      layer.feed_forward.deviation = deviation;
      layer.feed_forward.output_deviation = deviation;
      layer.feed_forward.length_scale = length_scale;
    }
  }
  return model;
}

CpmConfig cpm_config(
    const ConfigFields& fields,
    const CpmLikeDefaults& defaults) {
  const EncoderDecoderConfig both = cpm_like_config(fields, defaults);
  CpmConfig config;
  config.vocab = both.vocab;
  config.features = both.features;
  config.layers = both.encoder;
  config.scale = both.head_scale;
  config.tied_head = both.tied_head;
  config.embedding_deviation = both.embedding_deviation;
  config.head_deviation = both.head_deviation;
  return config;
}

ModelFamily cpm_family(
    const std::string& name,
    const std::string& stem,
    CpmConfig (*config)(const ConfigFields& fields)) {
  const auto make = [&](bool has_head) -> MakeModel {
    return [=](const ConfigFields& fields,
               const LayerContext& context,
               nlohmann::json json) -> std::shared_ptr<Model> {
      const CpmConfig sizes = config(fields);
      return std::make_shared<CpmModel>(
          sizes,
          has_head,
          context,
          std::move(json),
          cpm_names(name + ".", has_head, sizes.prompt_rows > 0));
    };
  };
  return {name, {{stem + "ForLM", make(true)}, {stem, make(false)}}};
}

} // namespace tessera::zoo
