// SPDX-License-Identifier: Apache-2.0
// ChatGLM2, ChatGLM3 and GLM-4 as in the authors' code (arXiv:2406.12793).

#include "tessera/zoo/models/families.h"

namespace tessera::zoo {

namespace {

DecoderConfig chatglm_config(const ConfigFields& fields) {
  fields.require_only("rmsnorm", true);
  fields.require_only("apply_residual_connection_post_layernorm", false);
  fields.require_only("multi_query_attention", true);
  fields.require_only("original_rope", true);
  fields.require_only("tie_word_embeddings", false);
  const int64_t features = fields.size({"hidden_size"});
  const int64_t heads =
      fields.find<int64_t>({"kv_channels"})
          ? fields.size({"num_attention_heads"})
          : fields.heads({"num_attention_heads"}, features, "hidden_size");
  const bool bias = fields.get<bool>({"add_bias_linear"}, false);
  const bool qkv_bias = fields.get<bool>({"add_qkv_bias"}, false) || bias;
  DecoderConfig decoder;
  decoder.vocab = fields.size({"padded_vocab_size", "vocab_size"});
  decoder.features = features;
  decoder.padding_token = fields.token({"pad_token_id"}, decoder.vocab);

  TransformerLayerOptions layer;
  layer.norm.kind = NormKind::kRmsNorm;
  layer.norm.features = features;
  layer.norm.eps = fields.positive({"layernorm_epsilon"}, 1e-5);
  layer.dropout = fields.probability({"hidden_dropout"});
  AttentionOptions& attention = layer.attention;
  attention.features = features;
  attention.heads = heads;
  attention.kv_heads = fields.kv_heads({"multi_query_group_num"}, heads, 1);
  attention.head_features = fields.size({"kv_channels"}, features / heads);
  attention.query_bias = attention.key_bias = qkv_bias;
  attention.value_bias = qkv_bias;
  attention.output_bias = bias;
  attention.causal = true;
  attention.dropout = fields.probability({"attention_dropout"});
  layer.feed_forward.features = features;
  layer.feed_forward.inner = fields.size({"ffn_hidden_size"});
  layer.feed_forward.activation = "silu";
  layer.feed_forward.gated = true;
  layer.feed_forward.bias = bias;
  decoder.layers =
      equal_layers(layer, fields.count({"num_layers", "num_hidden_layers"}));

  // Half of each head's features are rotated; the base scales with rope_ratio
  // for longer contexts.
  decoder.rotary = RotaryOptions{
      .features = attention.head_features / 2,
      .base = 10000 * fields.positive({"rope_ratio"}, 1.0),
      .layout = RotaryLayout::kPairs,
      .max_positions = fields.size({"seq_length"}, 2048)};
  if (fields.get<bool>({"post_layer_norm"}, true)) {
    decoder.final_norm = layer.norm;
  }
  decoder.classifier = ClassifierOptions::from_config(fields);
  return decoder;
}

NameTable chatglm_names() {
  return {
      .prefix = "transformer.",
      .base =
          {{"embedding.word_embeddings", {"embeddings.tokens"}},
           {"encoder.layers.*.input_layernorm", {"layers.*.attention_norm"}},
           {"encoder.layers.*.self_attention.query_key_value",
            {"layers.*.attention.query",
             "layers.*.attention.key",
             "layers.*.attention.value"}},
           {"encoder.layers.*.self_attention.dense",
            {"layers.*.attention.output"}},
           {"encoder.layers.*.post_attention_layernorm",
            {"layers.*.feed_forward_norm"}},
           {"encoder.layers.*.mlp.dense_h_to_4h",
            {"layers.*.feed_forward.gate", "layers.*.feed_forward.up"}},
           {"encoder.layers.*.mlp.dense_4h_to_h",
            {"layers.*.feed_forward.down"}},
           {"encoder.final_layernorm", {"final_norm"}}},
      // Frequencies, which are computed from the configuration.
      .ignored = {"rotary_pos_emb.inv_freq"}};
}

} // namespace

ModelFamily chatglm_family() {
  ModelFamily family = decoder_family(
      {.model_type = "chatglm",
       .base = "ChatGLMModel",
       .causal_lm = "ChatGLMForConditionalGeneration",
       .sequence_classification = "",
       .config = chatglm_config,
       .names = chatglm_names,
       .head = "transformer.output_layer"});
  // Published folders name this class, which includes the head.
  family.architectures[1].make = family.architectures[0].make;
  return family;
}

} // namespace tessera::zoo
