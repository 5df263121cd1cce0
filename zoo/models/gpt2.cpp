// SPDX-License-Identifier: Apache-2.0
// GPT-2 (Radford et al., 2019).

#include "tessera/zoo/models/families.h"

#include <cmath>

namespace tessera::zoo {

namespace {

DecoderConfig gpt2_config(const ConfigFields& fields) {
  fields.require_only("add_cross_attention", false);
  const int64_t features = fields.size({"n_embd", "hidden_size"});
  const int64_t count = fields.count({"n_layer", "num_hidden_layers"});
  const int64_t heads =
      fields.heads({"n_head", "num_attention_heads"}, features, "n_embd");

  DecoderConfig decoder;
  decoder.vocab = fields.size({"vocab_size"});
  decoder.features = features;
  decoder.token_types = true;
  decoder.learned_positions =
      fields.size({"n_positions", "max_position_embeddings", "n_ctx"}, 1024);
  decoder.embedding_dropout = fields.probability({"embd_pdrop"}, 0.1);
  decoder.deviation = fields.deviation({"initializer_range"});

  TransformerLayerOptions layer;
  layer.norm.features = features;
  layer.norm.eps = fields.positive({"layer_norm_epsilon"}, 1e-5);
  layer.attention.features = features;
  layer.attention.heads = heads;
  layer.attention.causal = true;
  layer.attention.dropout = fields.probability({"attn_pdrop"}, 0.1);
  layer.attention.deviation = decoder.deviation;
  // Initial weights of residual branches shrink with the number of layers.
  const double added =
      decoder.deviation / std::sqrt(2 * static_cast<double>(count));
  layer.attention.output_deviation = added;
  layer.feed_forward.features = features;
  layer.feed_forward.inner = fields.size({"n_inner"}, 4 * features);
  layer.feed_forward.activation =
      fields.activation({"activation_function"}, "gelu_new");
  layer.feed_forward.deviation = decoder.deviation;
  layer.feed_forward.output_deviation = added;
  layer.dropout = fields.probability({"resid_pdrop"}, 0.1);

  decoder.layers = equal_layers(layer, count);
  double scale = fields.get<bool>({"scale_attn_weights"}, true)
                     ? 1 / std::sqrt(static_cast<double>(features / heads))
                     : 1;
  const bool by_layer =
      fields.get<bool>({"scale_attn_by_inverse_layer_idx"}, false);
  for (int64_t i = 0; i < count; ++i) {
    decoder.layers[static_cast<size_t>(i)].attention.scale =
        by_layer ? scale / static_cast<double>(i + 1) : scale;
  }
  decoder.final_norm = layer.norm;
  decoder.tied_head = fields.get<bool>({"tie_word_embeddings"}, true);
  decoder.padding_token = fields.token({"pad_token_id"}, decoder.vocab);
  decoder.classifier = ClassifierOptions::from_config(fields);
  return decoder;
}

NameTable gpt2_names() {
  constexpr auto kConv1d = NameRule::kTransposed;
  return {
      .prefix = "transformer.",
      .base =
          {{"wte", {"embeddings.tokens"}},
           {"wpe", {"embeddings.positions"}},
           {"h.*.ln_1", {"layers.*.attention_norm"}},
           {"h.*.attn.c_attn",
            {"layers.*.attention.query",
             "layers.*.attention.key",
             "layers.*.attention.value"},
            kConv1d},
           {"h.*.attn.c_proj", {"layers.*.attention.output"}, kConv1d},
           {"h.*.ln_2", {"layers.*.feed_forward_norm"}},
           {"h.*.mlp.c_fc", {"layers.*.feed_forward.up"}, kConv1d},
           {"h.*.mlp.c_proj", {"layers.*.feed_forward.down"}, kConv1d},
           {"ln_f", {"final_norm"}}},
      // Causal masks saved by old versions.
      .ignored = {"h.*.attn.bias", "h.*.attn.masked_bias"}};
}

} // namespace

ModelFamily gpt2_family() {
  return decoder_family(
      {.model_type = "gpt2",
       .base = "GPT2Model",
       .causal_lm = "GPT2LMHeadModel",
       .sequence_classification = "GPT2ForSequenceClassification",
       .token_classification = "GPT2ForTokenClassification",
       .question_answering = "GPT2ForQuestionAnswering",
       .config = gpt2_config,
       .names = gpt2_names,
       .token_score = "classifier"});
}

} // namespace tessera::zoo
