// SPDX-License-Identifier: Apache-2.0
// OPT (arXiv:2205.01068).

#include "tessera/zoo/models/families.h"

namespace tessera::zoo {

namespace {

DecoderConfig opt_config(const ConfigFields& fields) {
  const int64_t features = fields.size({"hidden_size"});
  const bool bias = fields.get<bool>({"enable_bias"}, true);
  const bool pre_norm = fields.get<bool>({"do_layer_norm_before"}, true);
  DecoderConfig decoder;
  decoder.vocab = fields.size({"vocab_size"});
  decoder.features = features;
  decoder.embedding_features = fields.size({"word_embed_proj_dim"}, features);
  decoder.padding_token = fields.token({"pad_token_id"}, decoder.vocab, 1);
  decoder.padding_id = decoder.padding_token;
  decoder.position_offset = 2;
  decoder.learned_positions =
      fields.size({"max_position_embeddings"}, 2048) + decoder.position_offset;
  decoder.positions_skip_padding = true;
  decoder.deviation = fields.deviation({"init_std"});

  TransformerLayerOptions layer;
  layer.placement = pre_norm ? NormPlacement::kPre : NormPlacement::kPost;
  layer.norm.features = features;
  layer.norm.weight = fields.get<bool>({"layer_norm_elementwise_affine"}, true);
  AttentionOptions& attention = layer.attention;
  attention.features = features;
  attention.heads =
      fields.heads({"num_attention_heads"}, features, "hidden_size");
  attention.query_bias = attention.key_bias = bias;
  attention.value_bias = attention.output_bias = bias;
  attention.causal = true;
  attention.dropout = fields.probability({"attention_dropout"});
  attention.deviation = decoder.deviation;
  layer.feed_forward.features = features;
  layer.feed_forward.inner = fields.size({"ffn_dim"});
  layer.feed_forward.activation =
      fields.activation({"activation_function"}, "relu");
  layer.feed_forward.bias = bias;
  layer.feed_forward.deviation = decoder.deviation;
  layer.dropout = fields.probability({"dropout"}, 0.1);
  decoder.layer_drop = fields.probability({"layerdrop"});

  decoder.layers = equal_layers(layer, fields.count({"num_hidden_layers"}));
  if (pre_norm && !fields.get<bool>({"_remove_final_layer_norm"}, false)) {
    decoder.final_norm = layer.norm;
  }
  decoder.tied_head = fields.get<bool>({"tie_word_embeddings"}, true);
  decoder.classifier = ClassifierOptions::from_config(fields);
  return decoder;
}

NameTable opt_names() {
  return {
      .prefix = "model.",
      .base = {
          {"decoder.embed_tokens", {"embeddings.tokens"}},
          {"decoder.embed_positions", {"embeddings.positions"}},
          {"decoder.project_in", {"project_in"}},
          {"decoder.project_out", {"project_out"}},
          {"decoder.layers.*.self_attn_layer_norm",
           {"layers.*.attention_norm"}},
          {"decoder.layers.*.self_attn.q_proj", {"layers.*.attention.query"}},
          {"decoder.layers.*.self_attn.k_proj", {"layers.*.attention.key"}},
          {"decoder.layers.*.self_attn.v_proj", {"layers.*.attention.value"}},
          {"decoder.layers.*.self_attn.out_proj",
           {"layers.*.attention.output"}},
          {"decoder.layers.*.final_layer_norm", {"layers.*.feed_forward_norm"}},
          {"decoder.layers.*.fc1", {"layers.*.feed_forward.up"}},
          {"decoder.layers.*.fc2", {"layers.*.feed_forward.down"}},
          {"decoder.final_layer_norm", {"final_norm"}}}};
}

} // namespace

ModelFamily opt_family() {
  return decoder_family(
      {.model_type = "opt",
       .base = "OPTModel",
       .causal_lm = "OPTForCausalLM",
       .sequence_classification = "OPTForSequenceClassification",
       .question_answering = "OPTForQuestionAnswering",
       .config = opt_config,
       .names = opt_names});
}

} // namespace tessera::zoo
