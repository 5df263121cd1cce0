// SPDX-License-Identifier: Apache-2.0
// GPT-Neo (Black et al., 2021).

#include "tessera/zoo/models/families.h"

#include <string>
#include <vector>

namespace tessera::zoo {

namespace {

constexpr int64_t kMostFeatures = int64_t{1} << 26;

/// The kind of each layer: `attention_layers`, or `attention_types` expanded.
std::vector<std::string> layer_kinds(const ConfigFields& fields, size_t count) {
  const auto check = [&](bool is_good, const char* name) {
    TESSERA_CHECK(
        is_good,
        "{}: '{}' is {}; it must give global or local for each of the {} layers ('num_layers'), as in [[[\"global\", \"local\"], 12]] or a list of their kinds",
        fields.origin(),
        name,
        runtime::show_json(fields.given(name).value_or(nullptr)),
        count);
  };
  std::vector<std::string> kinds;
  const auto add = [&](const nlohmann::json& kind, const char* name) {
    check(kind == "global" || kind == "local", name);
    check(kinds.size() < count, name);
    kinds.push_back(kind.get<std::string>());
  };
  const char* name = "attention_layers";
  if (const auto list = fields.given("attention_layers")) {
    fields.given("attention_types"); // of which it is made
    check(list->is_array(), name);
    for (const nlohmann::json& kind : *list) {
      add(kind, name);
    }
  } else {
    name = "attention_types";
    const nlohmann::json types = fields.json_or(
        name,
        nlohmann::json::array({nlohmann::json::array(
            {nlohmann::json::array({"global", "local"}), 12})}));
    check(types.is_array(), name);
    for (const nlohmann::json& type : types) {
      check(
          type.is_array() && type.size() == 2 && type[0].is_array() &&
              !type[0].empty() && type[1].is_number_integer() && type[1] >= 0 &&
              type[1] <= count,
          name);
      for (int64_t i = 0; i < type[1].get<int64_t>(); ++i) {
        for (const nlohmann::json& kind : type[0]) {
          add(kind, name);
        }
      }
    }
  }
  check(kinds.size() == count, name);
  return kinds;
}

DecoderConfig gpt_neo_config(const ConfigFields& fields) {
  const int64_t features = fields.size({"hidden_size"});
  DecoderConfig decoder;
  decoder.vocab = fields.size({"vocab_size"});
  decoder.features = features;
  decoder.token_types = true;
  decoder.learned_positions = fields.size({"max_position_embeddings"}, 2048);
  decoder.embedding_dropout = fields.probability({"embed_dropout"});
  decoder.deviation = fields.deviation({"initializer_range"});
  TransformerLayerOptions layer;
  layer.norm.features = features;
  layer.norm.eps = fields.positive({"layer_norm_epsilon"}, 1e-5);
  AttentionOptions& attention = layer.attention;
  attention.features = features;
  attention.heads = fields.heads(
      {"num_heads", "num_attention_heads"}, features, "hidden_size");
  attention.query_bias = attention.key_bias = attention.value_bias = false;
  attention.causal = true;
  attention.scale = 1;
  attention.dropout = fields.probability({"attention_dropout"});
  attention.deviation = decoder.deviation;
  layer.feed_forward.features = features;
  const auto inner = fields.find<int64_t>({"intermediate_size"});
  TESSERA_CHECK(
      inner || features <= kMostFeatures,
      "{}: 'hidden_size' is {}; without 'intermediate_size', which is then four times as many, it must be at most 2^26",
      fields.origin(),
      features);
  layer.feed_forward.inner = fields.size({"intermediate_size"}, 4 * features);
  layer.feed_forward.activation =
      fields.activation({"activation_function"}, "gelu_new");
  layer.feed_forward.deviation = decoder.deviation;
  layer.dropout = fields.probability({"resid_dropout"});
  decoder.layers =
      equal_layers(layer, fields.count({"num_layers", "num_hidden_layers"}));
  decoder.window = fields.size({"window_size"}, 256);
  const auto kinds = layer_kinds(fields, decoder.layers.size());
  for (size_t i = 0; i < kinds.size(); ++i) {
    decoder.layers[i].local = kinds[i] == "local";
  }
  decoder.final_norm = layer.norm;
  decoder.tied_head = fields.get<bool>({"tie_word_embeddings"}, true);
  decoder.padding_token = fields.token({"pad_token_id"}, decoder.vocab);
  decoder.classifier = ClassifierOptions::from_config(fields);
  return decoder;
}

NameTable gpt_neo_names() {
  return {
      .prefix = "transformer.",
      .base =
          {{"wte", {"embeddings.tokens"}},
           {"wpe", {"embeddings.positions"}},
           {"h.*.ln_1", {"layers.*.attention_norm"}},
           {"h.*.attn.attention.q_proj", {"layers.*.attention.query"}},
           {"h.*.attn.attention.k_proj", {"layers.*.attention.key"}},
           {"h.*.attn.attention.v_proj", {"layers.*.attention.value"}},
           {"h.*.attn.attention.out_proj", {"layers.*.attention.output"}},
           {"h.*.ln_2", {"layers.*.feed_forward_norm"}},
           {"h.*.mlp.c_fc", {"layers.*.feed_forward.up"}},
           {"h.*.mlp.c_proj", {"layers.*.feed_forward.down"}},
           {"ln_f", {"final_norm"}}},
      // Causal masks saved by old versions.
      .ignored = {"h.*.attn.attention.bias", "h.*.attn.attention.masked_bias"}};
}

} // namespace

ModelFamily gpt_neo_family() {
  return decoder_family(
      {.model_type = "gpt_neo",
       .base = "GPTNeoModel",
       .causal_lm = "GPTNeoForCausalLM",
       .sequence_classification = "GPTNeoForSequenceClassification",
       .token_classification = "GPTNeoForTokenClassification",
       .question_answering = "GPTNeoForQuestionAnswering",
       .config = gpt_neo_config,
       .names = gpt_neo_names,
       .token_score = "classifier"});
}

} // namespace tessera::zoo
