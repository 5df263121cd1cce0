// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/blank_infilling.h"

#include "tessera/zoo/models/families.h"

#include <cmath>

namespace tessera::zoo {

namespace {

DecoderConfig blank_infilling_config(const ConfigFields& fields) {
  fields.require_only("relative_encoding", false);
  fields.require_only("block_position_encoding", true);
  const int64_t features = fields.size({"hidden_size"});
  const int64_t count = fields.count({"num_layers", "num_hidden_layers"});
  DecoderConfig decoder;
  decoder.vocab = fields.size({"vocab_size"});
  decoder.features = features;
  decoder.learned_positions = fields.size({"max_sequence_length"}, 512) + 1;
  decoder.block_positions = decoder.learned_positions;
  decoder.prefix = true;
  decoder.embedding_dropout =
      fields.probability({"embedding_dropout_prob"}, 0.1);
  decoder.deviation = fields.deviation({"initializer_range"});

  TransformerLayerOptions layer;
  layer.norm.features = features;
  layer.norm.eps = fields.positive({"layernorm_epsilon"}, 1e-5);
  layer.dropout = fields.probability({"output_dropout_prob"}, 0.1);
  AttentionOptions& attention = layer.attention;
  attention.features = features;
  attention.heads =
      fields.heads({"num_attention_heads"}, features, "hidden_size");
  attention.causal = true;
  attention.dropout = fields.probability({"attention_dropout_prob"}, 0.1);
  attention.deviation = decoder.deviation;
  // Initial weights of residual branches shrink with the number of layers.
  const double added =
      decoder.deviation / std::sqrt(2 * static_cast<double>(count));
  attention.output_deviation = added;
  layer.feed_forward.features = features;
  layer.feed_forward.inner = 4 * features;
  layer.feed_forward.activation = "gelu_new";
  layer.feed_forward.deviation = decoder.deviation;
  layer.feed_forward.output_deviation = added;
  decoder.layers = equal_layers(layer, count);

  decoder.final_norm = layer.norm;
  decoder.tied_head = true;
  decoder.labels_in_place = true;
  decoder.padding_token = fields.token({"pad_token_id"}, decoder.vocab);
  decoder.classifier = ClassifierOptions::from_config(fields);
  return decoder;
}

NameTable blank_infilling_names() {
  return {
      .prefix = "glm.",
      .base = {
          {"word_embeddings", {"embeddings.tokens"}},
          {"transformer.position_embeddings", {"embeddings.positions"}},
          {"transformer.block_position_embeddings",
           {"embeddings.block_positions"}},
          {"transformer.layers.*.input_layernorm", {"layers.*.attention_norm"}},
          {"transformer.layers.*.attention.query_key_value",
           {"layers.*.attention.query",
            "layers.*.attention.key",
            "layers.*.attention.value"}},
          {"transformer.layers.*.attention.dense",
           {"layers.*.attention.output"}},
          {"transformer.layers.*.post_attention_layernorm",
           {"layers.*.feed_forward_norm"}},
          {"transformer.layers.*.mlp.dense_h_to_4h",
           {"layers.*.feed_forward.up"}},
          {"transformer.layers.*.mlp.dense_4h_to_h",
           {"layers.*.feed_forward.down"}},
          {"transformer.final_layernorm", {"final_norm"}}}};
}

} // namespace

ModelFamily blank_infilling_family() {
  return decoder_family(
      {.model_type = "glm",
       .base = "GLMModel",
       .causal_lm = "GLMForConditionalGeneration",
       .sequence_classification = "",
       .config = blank_infilling_config,
       .names = blank_infilling_names});
}

} // namespace tessera::zoo
