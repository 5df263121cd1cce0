// SPDX-License-Identifier: Apache-2.0
// GLM-4 (arXiv:2406.12793): `glm`, and `glm4` with norms before and after each
// half of a layer. The first GLM (arXiv:2103.10360) is also a `glm`, with other
// architectures.

#include "tessera/zoo/models/blank_infilling.h"
#include "tessera/zoo/models/llama_like.h"

#include <utility>

namespace tessera::zoo {

namespace {

DecoderConfig glm_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(
      fields,
      {.max_positions = 131072,
       .norm_eps = 1.5625e-7,
       .kv_heads = 2,
       .head_features = 128,
       .padding_token = 151329,
       .rotary_share = 0.5});
  decoder.rotary->layout = RotaryLayout::kPairs;
  set_attention_bias(
      decoder, fields.get<bool>({"attention_bias"}, true), /*output=*/false);
  return decoder;
}

DecoderConfig glm4_config(const ConfigFields& fields) {
  DecoderConfig decoder = glm_config(fields);
  for (TransformerLayerOptions& layer : decoder.layers) {
    layer.placement = NormPlacement::kSandwich;
  }
  return decoder;
}

NameTable glm_names() {
  NameTable table = llama_like_names(FeedForwardNames::kNone);
  table.base.push_back(
      {"layers.*.mlp.gate_up_proj",
       {"layers.*.feed_forward.gate", "layers.*.feed_forward.up"}});
  table.base.push_back(
      {"layers.*.mlp.down_proj", {"layers.*.feed_forward.down"}});
  return table;
}

NameTable glm4_names() {
  NameTable table = glm_names();
  table.base.push_back(
      {"layers.*.post_self_attn_layernorm",
       {"layers.*.attention_output_norm"}});
  table.base.push_back(
      {"layers.*.post_mlp_layernorm", {"layers.*.feed_forward_output_norm"}});
  return table;
}

} // namespace

ModelFamily glm_family() {
  ModelFamily family = decoder_family(
      {.model_type = "glm",
       .base = "GlmModel",
       .causal_lm = "GlmForCausalLM",
       .sequence_classification = "GlmForSequenceClassification",
       .token_classification = "GlmForTokenClassification",
       .config = glm_config,
       .names = glm_names});
  ModelFamily first = blank_infilling_family();
  family.position_limit =
      [rotary = std::move(family.position_limit),
       learned = std::move(first.position_limit)](const ConfigFields& fields) {
        const auto names = fields.json("architectures");
        const bool is_first =
            names && names->is_array() && !names->empty() &&
            names->front().is_string() &&
            names->front().get_ref<const std::string&>().starts_with("GLM");
        return is_first ? learned(fields) : rotary(fields);
      };
  for (Architecture& one : first.architectures) {
    family.architectures.push_back(std::move(one));
  }
  return family;
}

ModelFamily glm4_family() {
  return decoder_family(
      {.model_type = "glm4",
       .base = "Glm4Model",
       .causal_lm = "Glm4ForCausalLM",
       .sequence_classification = "Glm4ForSequenceClassification",
       .token_classification = "Glm4ForTokenClassification",
       .config = glm4_config,
       .names = glm4_names});
}

} // namespace tessera::zoo
