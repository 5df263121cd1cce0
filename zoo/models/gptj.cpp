// SPDX-License-Identifier: Apache-2.0
// GPT-J (Wang and Komatsuzaki, 2021).

#include "tessera/zoo/models/families.h"

namespace tessera::zoo {

namespace {

DecoderConfig gptj_config(const ConfigFields& fields) {
  const int64_t features = fields.size({"n_embd", "hidden_size"});
  const int64_t positions =
      fields.size({"n_positions", "max_position_embeddings"}, 2048);
  DecoderConfig decoder;
  decoder.vocab = fields.size({"vocab_size"});
  decoder.features = features;
  decoder.token_types = true;
  decoder.embedding_dropout = fields.probability({"embd_pdrop"});
  decoder.deviation = fields.deviation({"initializer_range"});

  TransformerLayerOptions layer;
  layer.parallel_halves = true;
  layer.norm.features = features;
  layer.norm.eps = fields.positive({"layer_norm_epsilon"}, 1e-5);
  AttentionOptions& attention = layer.attention;
  attention.features = features;
  attention.heads =
      fields.heads({"n_head", "num_attention_heads"}, features, "n_embd");
  attention.query_bias = attention.key_bias = false;
  attention.value_bias = attention.output_bias = false;
  attention.causal = true;
  attention.dropout = fields.probability({"attn_pdrop"});
  attention.deviation = decoder.deviation;
  layer.feed_forward.features = features;
  layer.feed_forward.inner = fields.size({"n_inner"}, 4 * features);
  layer.feed_forward.activation =
      fields.activation({"activation_function"}, "gelu_new");
  layer.feed_forward.deviation = decoder.deviation;
  layer.dropout = fields.probability({"resid_pdrop"});

  decoder.layers =
      equal_layers(layer, fields.count({"n_layer", "num_hidden_layers"}));
  // null: all features of a head.
  const int64_t rotated = fields.size(
      {"rotary_dim"},
      fields.is_null("rotary_dim") ? features / attention.heads : 64);
  TESSERA_CHECK(
      rotated % 2 == 0 && rotated <= features / attention.heads,
      "{}: 'rotary_dim' is {}; it must be even, and at most the {} features of a head",
      fields.origin(),
      rotated,
      features / attention.heads);
  decoder.rotary = RotaryOptions{
      .features = rotated,
      .layout = RotaryLayout::kPairs,
      .max_positions = positions};
  decoder.final_norm = layer.norm;
  decoder.tied_head = fields.get<bool>({"tie_word_embeddings"}, false);
  decoder.head_bias = true;
  TESSERA_CHECK(
      !decoder.tied_head,
      "{}: 'tie_word_embeddings' is true; GPT-J's head, which has a bias, is implemented only with a weight of its own",
      fields.origin());
  decoder.padding_token = fields.token({"pad_token_id"}, decoder.vocab);
  decoder.classifier = ClassifierOptions::from_config(fields);
  return decoder;
}

NameTable gptj_names() {
  return {
      .prefix = "transformer.",
      .base =
          {{"wte", {"embeddings.tokens"}},
           {"h.*.ln_1", {"layers.*.attention_norm"}},
           {"h.*.attn.q_proj", {"layers.*.attention.query"}},
           {"h.*.attn.k_proj", {"layers.*.attention.key"}},
           {"h.*.attn.v_proj", {"layers.*.attention.value"}},
           {"h.*.attn.out_proj", {"layers.*.attention.output"}},
           {"h.*.mlp.fc_in", {"layers.*.feed_forward.up"}},
           {"h.*.mlp.fc_out", {"layers.*.feed_forward.down"}},
           {"ln_f", {"final_norm"}}},
      // Causal masks saved by old versions.
      .ignored = {"h.*.attn.bias", "h.*.attn.masked_bias"}};
}

} // namespace

ModelFamily gptj_family() {
  return decoder_family(
      {.model_type = "gptj",
       .base = "GPTJModel",
       .causal_lm = "GPTJForCausalLM",
       .sequence_classification = "GPTJForSequenceClassification",
       .question_answering = "GPTJForQuestionAnswering",
       .config = gptj_config,
       .names = gptj_names});
}

} // namespace tessera::zoo
