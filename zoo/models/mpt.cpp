// SPDX-License-Identifier: Apache-2.0
// MPT (MosaicML, 2023): biases by distance (ALiBi) in place of positions.

#include "tessera/zoo/models/families.h"

#include <cmath>
#include <vector>

namespace tessera::zoo {

namespace {

constexpr int64_t kExpansion = 4; ///< of the feed-forward layers
constexpr int64_t kMostExpanded = (int64_t{1} << 28) / kExpansion;

/// The slopes of ALiBi: a geometric sequence for the next power of two of
/// heads, of which other numbers take every second one first.
std::vector<double> distance_slopes(int64_t heads, double most) {
  int64_t power = 1;
  while (power < heads) {
    power *= 2;
  }
  std::vector<double> slopes;
  const auto add = [&](int64_t first, int64_t step) {
    for (int64_t i = first; i <= power && slopes.size() < size_t(heads);
         i += step) {
      slopes.push_back(std::pow(
          2.0, -static_cast<double>(i) * most / static_cast<double>(power)));
    }
  };
  if (power == heads) {
    add(1, 1);
  } else {
    add(2, 2);
    add(1, 2);
  }
  return slopes;
}

DecoderConfig mpt_config(const ConfigFields& fields) {
  const ConfigFields inner(
      fields.given("attn_config").value_or(nlohmann::json::object()),
      fields.origin() + ": 'attn_config'");
  inner.require_only<std::string>("attn_type", "multihead_attention");
  inner.require_only("alibi", true);
  inner.require_only("prefix_lm", false);
  inner.require_only("qk_ln", false);
  inner.require_only("attn_pdrop", 0.0);
  TESSERA_CHECK(
      !inner.find<double>({"clip_qkv"}),
      "{}: 'clip_qkv' is given; MPT is implemented only without it: use a model where it is null",
      inner.origin());
  // Without effect in transformers.
  for (const char* name :
       {"init_device", "learned_pos_emb", "max_seq_len", "norm_type"}) {
    fields.given(name);
  }
  fields.require_only("no_bias", true);
  fields.require_only("emb_pdrop", 0.0);
  fields.require_only("resid_pdrop", 0.0);
  fields.require_only("embedding_fraction", 1.0);
  const int64_t features = fields.size({"d_model", "hidden_size"});
  DecoderConfig decoder;
  decoder.vocab = fields.size({"vocab_size"});
  decoder.features = features;
  decoder.deviation = fields.deviation({"initializer_range"});
  TransformerLayerOptions layer;
  layer.norm.features = features;
  layer.norm.eps = fields.positive({"layer_norm_epsilon"}, 1e-5);
  layer.norm.bias = false;
  AttentionOptions& attention = layer.attention;
  attention.features = features;
  attention.heads =
      fields.heads({"n_heads", "num_attention_heads"}, features, "d_model");
  attention.query_bias = attention.key_bias = false;
  attention.value_bias = attention.output_bias = false;
  attention.causal = true;
  attention.scale = inner.find<double>({"softmax_scale"});
  attention.deviation = decoder.deviation;
  layer.feed_forward.features = features;
  fields.require_only("expansion_ratio", kExpansion);
  TESSERA_CHECK(
      features <= kMostExpanded,
      "{}: 'd_model' is {}; it must be at most 2^26",
      fields.origin(),
      features);
  layer.feed_forward.inner = kExpansion * features;
  layer.feed_forward.bias = false;
  layer.feed_forward.deviation = decoder.deviation;
  decoder.layers =
      equal_layers(layer, fields.count({"n_layers", "num_hidden_layers"}));
  decoder.distance_slopes =
      distance_slopes(attention.heads, inner.positive({"alibi_bias_max"}, 8.0));
  decoder.final_norm = layer.norm;
  decoder.tied_head = fields.get<bool>({"tie_word_embeddings"}, true);
  decoder.padding_token = fields.token({"pad_token_id"}, decoder.vocab);
  decoder.classifier = ClassifierOptions::from_config(fields);
  return decoder;
}

NameTable mpt_names() {
  return {
      .prefix = "transformer.",
      .base = {
          {"wte", {"embeddings.tokens"}},
          {"blocks.*.norm_1", {"layers.*.attention_norm"}},
          {"blocks.*.attn.Wqkv",
           {"layers.*.attention.query",
            "layers.*.attention.key",
            "layers.*.attention.value"}},
          {"blocks.*.attn.out_proj", {"layers.*.attention.output"}},
          {"blocks.*.norm_2", {"layers.*.feed_forward_norm"}},
          {"blocks.*.ffn.up_proj", {"layers.*.feed_forward.up"}},
          {"blocks.*.ffn.down_proj", {"layers.*.feed_forward.down"}},
          {"norm_f", {"final_norm"}}}};
}

} // namespace

ModelFamily mpt_family() {
  return decoder_family(
      {.model_type = "mpt",
       .base = "MptModel",
       .causal_lm = "MptForCausalLM",
       .sequence_classification = "MptForSequenceClassification",
       .config = mpt_config,
       .names = mpt_names});
}

} // namespace tessera::zoo
