// SPDX-License-Identifier: Apache-2.0
// Phi 1 and 2 (arXiv:2306.11644), and Phi-3 and 4 (arXiv:2404.14219).

#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

DecoderConfig phi_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(
      fields,
      {.max_positions = 2048,
       .norm_eps = 1e-5,
       .norm = NormKind::kLayerNorm,
       .norm_eps_field = "layer_norm_eps",
       .activation = "gelu_new",
       .gated = false,
       .rotary_share = 0.5});
  set_attention_bias(decoder, true, true);
  for_layers(decoder, [&](TransformerLayerOptions& layer) {
    layer.parallel_halves = true;
    layer.feed_forward.bias = true;
    layer.dropout = fields.probability({"resid_pdrop"});
  });
  if (fields.get<bool>({"qk_layernorm"}, false)) {
    add_query_key_norms(decoder);
  }
  decoder.embedding_dropout = fields.probability({"embd_pdrop"});
  decoder.head_bias = true;
  TESSERA_CHECK(
      !decoder.tied_head,
      "{}: 'tie_word_embeddings' is true; Phi's head, which has a bias, is implemented only with a weight of its own",
      fields.origin());
  return decoder;
}

NameTable phi_names() {
  return {
      .prefix = "model.",
      .base =
          {{"embed_tokens", {"embeddings.tokens"}},
           {"layers.*.input_layernorm", {"layers.*.attention_norm"}},
           {"layers.*.self_attn.q_proj", {"layers.*.attention.query"}},
           {"layers.*.self_attn.k_proj", {"layers.*.attention.key"}},
           {"layers.*.self_attn.v_proj", {"layers.*.attention.value"}},
           {"layers.*.self_attn.dense", {"layers.*.attention.output"}},
           {"layers.*.self_attn.q_layernorm",
            {"layers.*.attention.query_norm"}},
           {"layers.*.self_attn.k_layernorm", {"layers.*.attention.key_norm"}},
           {"layers.*.mlp.fc1", {"layers.*.feed_forward.up"}},
           {"layers.*.mlp.fc2", {"layers.*.feed_forward.down"}},
           {"final_layernorm", {"final_norm"}}},
      .ignored = {"layers.*.self_attn.rotary_emb.inv_freq"}};
}

DecoderConfig phi3_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(
      fields,
      {.max_positions = 4096,
       .norm_eps = 1e-5,
       .padding_token = 32000,
       .rotary_share = 1.0});
  read_layer_types(fields, decoder, {}, [](size_t) { return true; });
  fields.given("embd_pdrop"); // transformers has no such dropout
  fields.given("original_max_position_embeddings"); // for LongRoPE alone
  for_layers(decoder, [&](TransformerLayerOptions& layer) {
    layer.dropout = fields.probability({"resid_pdrop"});
  });
  return decoder;
}

NameTable phi3_names() {
  return {
      .prefix = "model.",
      .base =
          {{"embed_tokens", {"embeddings.tokens"}},
           {"layers.*.input_layernorm", {"layers.*.attention_norm"}},
           {"layers.*.self_attn.qkv_proj",
            {"layers.*.attention.query",
             "layers.*.attention.key",
             "layers.*.attention.value"}},
           {"layers.*.self_attn.o_proj", {"layers.*.attention.output"}},
           {"layers.*.post_attention_layernorm",
            {"layers.*.feed_forward_norm"}},
           {"layers.*.mlp.gate_up_proj",
            {"layers.*.feed_forward.gate", "layers.*.feed_forward.up"}},
           {"layers.*.mlp.down_proj", {"layers.*.feed_forward.down"}},
           {"norm", {"final_norm"}}},
      .ignored = {"layers.*.self_attn.rotary_emb.inv_freq"}};
}

} // namespace

ModelFamily phi_family() {
  return decoder_family(
      {.model_type = "phi",
       .base = "PhiModel",
       .causal_lm = "PhiForCausalLM",
       .sequence_classification = "PhiForSequenceClassification",
       .token_classification = "PhiForTokenClassification",
       .config = phi_config,
       .names = phi_names});
}

ModelFamily phi3_family() {
  return decoder_family(
      {.model_type = "phi3",
       .base = "Phi3Model",
       .causal_lm = "Phi3ForCausalLM",
       .sequence_classification = "Phi3ForSequenceClassification",
       .token_classification = "Phi3ForTokenClassification",
       .config = phi3_config,
       .names = phi3_names});
}

} // namespace tessera::zoo
