// SPDX-License-Identifier: Apache-2.0
// Gemma (arXiv:2403.08295) and the texts of Gemma 3 (arXiv:2503.19786).

#include "tessera/zoo/models/llama_like.h"

#include <cmath>

namespace tessera::zoo {

namespace {

/// Norms that keep their weight less 1, and embeddings times the root of their
/// size.
void make_gemma(const ConfigFields& fields, DecoderConfig& decoder) {
  fields.require_only("use_bidirectional_attention", false);
  const bool bias = fields.get<bool>({"attention_bias"}, false);
  set_attention_bias(decoder, bias, bias);
  for_layers(decoder, [](TransformerLayerOptions& layer) {
    layer.norm.weight_offset = 1;
  });
  decoder.final_norm->weight_offset = 1;
  decoder.embedding_scale = std::sqrt(static_cast<double>(decoder.features));
}

DecoderConfig gemma_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(
      fields,
      {.max_positions = 8192,
       .kv_heads = 16,
       .head_features = 256,
       .padding_token = 0,
       .tied_head = true,
       .activation = "gelu_pytorch_tanh"});
  make_gemma(fields, decoder);
  // Files say "gelu", and mean its approximation.
  for_layers(decoder, [](TransformerLayerOptions& layer) {
    if (layer.feed_forward.activation == "gelu") {
      layer.feed_forward.activation = "gelu_pytorch_tanh";
    }
  });
  return decoder;
}

DecoderConfig gemma3_config(const ConfigFields& fields) {
  for (const char* name :
       {"final_logit_softcapping", "attn_logit_softcapping"}) {
    TESSERA_CHECK(
        !fields.find<double>({name}),
        "{}: '{}' is given; Gemma 3 is implemented only without it: use a model where it is null",
        fields.origin(),
        name);
  }
  constexpr double kBase = 1e6;
  DecoderConfig decoder = llama_like_config(
      fields,
      {.max_positions = 131072,
       .kv_heads = 4,
       .head_features = 256,
       .padding_token = 0,
       .tied_head = true,
       .activation_field = "hidden_activation",
       .activation = "gelu_pytorch_tanh",
       .rotary_base = kBase});
  make_gemma(fields, decoder);
  add_query_key_norms(decoder);
  const int64_t pattern = fields.size({"sliding_window_pattern"}, 6);
  read_layer_types(fields, decoder, 4096, [&](size_t layer) {
    return static_cast<int64_t>(layer + 1) % pattern != 0;
  });
  read_local_rotary(fields, decoder, kBase, 10000);
  for_layers(decoder, [&](TransformerLayerOptions& layer) {
    layer.placement = NormPlacement::kSandwich;
    layer.attention.scale =
        1 / std::sqrt(fields.positive({"query_pre_attn_scalar"}, 256.0));
  });
  return decoder;
}

NameTable gemma_names() {
  return llama_like_names();
}

NameTable gemma3_names() {
  NameTable table = with_query_key_norms(llama_like_names());
  for (NameRule& rule : table.base) {
    if (rule.foreign == "layers.*.post_attention_layernorm") {
      rule.foreign = "layers.*.pre_feedforward_layernorm";
    }
  }
  table.base.push_back(
      {"layers.*.post_attention_layernorm",
       {"layers.*.attention_output_norm"}});
  table.base.push_back(
      {"layers.*.post_feedforward_layernorm",
       {"layers.*.feed_forward_output_norm"}});
  return table;
}

} // namespace

ModelFamily gemma_family() {
  return decoder_family(
      {.model_type = "gemma",
       .base = "GemmaModel",
       .causal_lm = "GemmaForCausalLM",
       .sequence_classification = "GemmaForSequenceClassification",
       .token_classification = "GemmaForTokenClassification",
       .config = gemma_config,
       .names = gemma_names});
}

ModelFamily gemma3_text_family() {
  return decoder_family(
      {.model_type = "gemma3_text",
       .base = "Gemma3TextModel",
       .causal_lm = "Gemma3ForCausalLM",
       .sequence_classification = "Gemma3TextForSequenceClassification",
       .config = gemma3_config,
       .names = gemma3_names});
}

} // namespace tessera::zoo
