// SPDX-License-Identifier: Apache-2.0
// OLMo (arXiv:2402.00838), OLMo 2 (arXiv:2501.00656) and OLMo 3
// (arXiv:2512.13961).

#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

DecoderConfig olmo_config(const ConfigFields& fields) {
  TESSERA_CHECK(
      !fields.find<double>({"clip_qkv"}),
      "{}: 'clip_qkv' is given; OLMo is implemented only without it: use a model whose 'clip_qkv' is null",
      fields.origin());
  DecoderConfig decoder = llama_like_config(
      fields,
      {.max_positions = 2048,
       .padding_token = 1,
       .norm = NormKind::kLayerNorm});
  const bool bias = fields.get<bool>({"attention_bias"}, false);
  set_attention_bias(decoder, bias, bias);
  for_layers(decoder, [](TransformerLayerOptions& layer) {
    layer.norm.weight = false;
    layer.norm.eps = 1e-5;
  });
  decoder.final_norm = decoder.layers.front().norm;
  return decoder;
}

DecoderConfig olmo2_config(const ConfigFields& fields, double rotary_base) {
  DecoderConfig decoder = llama_like_config(
      fields,
      {.max_positions = 2048,
       .norm_eps = 1e-5,
       .padding_token = 1,
       .rotary_base = rotary_base});
  const bool bias = fields.get<bool>({"attention_bias"}, false);
  set_attention_bias(decoder, bias, bias);
  add_query_key_norms(decoder);
  for_layers(decoder, [](TransformerLayerOptions& layer) {
    layer.placement = NormPlacement::kBranch;
    layer.attention.norms_all_heads = true;
  });
  return decoder;
}

DecoderConfig olmo2_config(const ConfigFields& fields) {
  return olmo2_config(fields, 10000);
}

DecoderConfig olmo3_config(const ConfigFields& fields) {
  constexpr double kBase = 500000;
  DecoderConfig decoder = olmo2_config(fields, kBase);
  read_layer_types(
      fields, decoder, 4096, [](size_t layer) { return (layer + 1) % 4 != 0; });
  read_local_rotary(fields, decoder, kBase, decoder.rotary->base);
  return decoder;
}

NameTable olmo_names() {
  return llama_like_names();
}

NameTable olmo2_names() {
  return branch_norm_names();
}

} // namespace

ModelFamily olmo_family() {
  return decoder_family(
      {.model_type = "olmo",
       .base = "OlmoModel",
       .causal_lm = "OlmoForCausalLM",
       .sequence_classification = "OlmoForSequenceClassification",
       .config = olmo_config,
       .names = olmo_names});
}

ModelFamily olmo2_family() {
  return decoder_family(
      {.model_type = "olmo2",
       .base = "Olmo2Model",
       .causal_lm = "Olmo2ForCausalLM",
       .sequence_classification = "Olmo2ForSequenceClassification",
       .config = olmo2_config,
       .names = olmo2_names});
}

ModelFamily olmo3_family() {
  return decoder_family(
      {.model_type = "olmo3",
       .base = "Olmo3Model",
       .causal_lm = "Olmo3ForCausalLM",
       .sequence_classification = "Olmo3ForSequenceClassification",
       .config = olmo3_config,
       .names = olmo2_names});
}

} // namespace tessera::zoo
