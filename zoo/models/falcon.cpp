// SPDX-License-Identifier: Apache-2.0
// Falcon 7B (arXiv:2311.16867): one head of keys and values, halves in
// parallel.

#include "tessera/zoo/models/families.h"

#include <utility>

namespace tessera::zoo {

namespace {

DecoderConfig falcon_config(const ConfigFields& fields) {
  for (const auto& [name, only] :
       {std::pair("alibi", false),
        std::pair("new_decoder_architecture", false),
        std::pair("multi_query", true)}) {
    fields.require_only(name, only);
  }
  fields.require_only("hidden_dropout", 0.0);
  fields.given("num_kv_heads"); // of the new architecture alone
  const int64_t features = fields.size({"hidden_size", "n_embed"});
  const bool bias = fields.get<bool>({"bias"}, false);
  DecoderConfig decoder;
  decoder.vocab = fields.size({"vocab_size"});
  decoder.features = features;
  decoder.deviation = fields.deviation({"initializer_range"});
  TransformerLayerOptions layer;
  layer.parallel_halves = fields.get<bool>({"parallel_attn"}, true);
  layer.norm.features = features;
  layer.norm.eps = fields.positive({"layer_norm_epsilon"}, 1e-5);
  AttentionOptions& attention = layer.attention;
  attention.features = features;
  attention.heads =
      fields.heads({"num_attention_heads", "n_head"}, features, "hidden_size");
  attention.kv_heads = 1;
  attention.query_bias = attention.key_bias = bias;
  attention.value_bias = attention.output_bias = bias;
  attention.causal = true;
  // As in transformers: without alibi, attention weights have no dropout. Where
  // the halves are one after the other, the output of attention has it.
  if (layer.parallel_halves) {
    fields.probability({"attention_dropout"});
  } else {
    fields.require_only("attention_dropout", 0.0);
  }
  attention.deviation = decoder.deviation;
  layer.feed_forward.features = features;
  layer.feed_forward.inner = fields.size({"ffn_hidden_size"}, 4 * features);
  layer.feed_forward.activation = fields.activation({"activation"}, "gelu");
  layer.feed_forward.bias = bias;
  layer.feed_forward.deviation = decoder.deviation;
  decoder.layers =
      equal_layers(layer, fields.count({"num_hidden_layers", "n_layer"}));
  decoder.rotary = fields.rotary(
      features / attention.heads,
      fields.size({"max_position_embeddings"}, 2048));
  decoder.final_norm = layer.norm;
  decoder.tied_head = fields.get<bool>({"tie_word_embeddings"}, true);
  decoder.padding_token = fields.token({"pad_token_id"}, decoder.vocab);
  decoder.classifier = ClassifierOptions::from_config(fields);
  return decoder;
}

NameTable falcon_names() {
  return {
      .prefix = "transformer.",
      .base = {
          {"word_embeddings", {"embeddings.tokens"}},
          {"h.*.input_layernorm", {"layers.*.attention_norm"}},
          {"h.*.self_attention.query_key_value",
           {"layers.*.attention.query",
            "layers.*.attention.key",
            "layers.*.attention.value"}},
          {"h.*.self_attention.dense", {"layers.*.attention.output"}},
          {"h.*.post_attention_layernorm", {"layers.*.feed_forward_norm"}},
          {"h.*.mlp.dense_h_to_4h", {"layers.*.feed_forward.up"}},
          {"h.*.mlp.dense_4h_to_h", {"layers.*.feed_forward.down"}},
          {"ln_f", {"final_norm"}}}};
}

} // namespace

ModelFamily falcon_family() {
  return decoder_family(
      {.model_type = "falcon",
       .base = "FalconModel",
       .causal_lm = "FalconForCausalLM",
       .sequence_classification = "FalconForSequenceClassification",
       .config = falcon_config,
       .names = falcon_names});
}

} // namespace tessera::zoo
