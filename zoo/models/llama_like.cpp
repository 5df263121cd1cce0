// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

/// The number of features of a head that the file or the family gives; nullopt:
/// `hidden_size` over the heads.
std::optional<int64_t> given_head_features(
    const ConfigFields& fields,
    const LlamaLikeDefaults& defaults) {
  const auto otherwise =
      fields.is_null("head_dim") ? std::nullopt : defaults.head_features;
  return fields.find_or<int64_t>({"head_dim"}, otherwise);
}

double rotary_share(
    const ConfigFields& fields,
    const LlamaLikeDefaults& defaults) {
  if (!defaults.rotary_share) {
    fields.require_only("partial_rotary_factor", 1.0);
    return 1;
  }
  const auto rope = fields.json("rope_parameters");
  const ConfigFields inner(
      rope.value_or(nlohmann::json::object()),
      fields.origin() + ": 'rope_parameters'");
  const double share = inner.get<double>(
      {"partial_rotary_factor"},
      fields.get<double>({"partial_rotary_factor"}, *defaults.rotary_share));
  TESSERA_CHECK(
      share > 0 && share <= 1,
      "{}: 'partial_rotary_factor' is {}; it must be above 0 and at most 1",
      fields.origin(),
      share);
  return share;
}

/// Sets the layers with windows: those of `layer_types`, else of `is_local`.
void set_local_layers(
    const ConfigFields& fields,
    DecoderConfig& decoder,
    const std::function<bool(size_t layer)>& is_local) {
  constexpr const char* kLocal = "sliding_attention";
  const auto types = fields.json("layer_types");
  TESSERA_CHECK(
      !types || (types->is_array() && types->size() == decoder.layers.size()),
      "{}: 'layer_types' is {}; it must be a list with a type for each of the {} layers ('num_hidden_layers')",
      fields.origin(),
      runtime::show_json(types.value_or(nullptr)),
      decoder.layers.size());
  for (size_t i = 0; i < decoder.layers.size(); ++i) {
    TESSERA_CHECK(
        !types || (*types)[i] == kLocal || (*types)[i] == "full_attention",
        "{}: 'layer_types' contains {}; only full_attention and {} are implemented",
        fields.origin(),
        runtime::show_json(types ? (*types)[i] : nullptr),
        kLocal);
    decoder.layers[i].local = types ? (*types)[i] == kLocal : is_local(i);
  }
}

} // namespace

DecoderConfig llama_like_config(
    const ConfigFields& fields,
    const LlamaLikeDefaults& defaults) {
  const double share = rotary_share(fields, defaults);
  const int64_t features = fields.size({"hidden_size"});
  const auto head_features = given_head_features(fields, defaults);
  const int64_t heads =
      head_features
          ? fields.size({"num_attention_heads"})
          : fields.heads({"num_attention_heads"}, features, "hidden_size");
  const int64_t kv_heads = fields.is_null("num_key_value_heads")
                               ? heads
                               : defaults.kv_heads.value_or(heads);
  DecoderConfig decoder;
  decoder.vocab = fields.size({"vocab_size"});
  decoder.features = features;
  decoder.padding_token =
      fields.token({"pad_token_id"}, decoder.vocab, defaults.padding_token);
  decoder.padding_id = decoder.padding_token;
  decoder.deviation =
      fields.deviation({"initializer_range"}, defaults.deviation);

  TransformerLayerOptions layer;
  layer.norm.kind = defaults.norm;
  layer.norm.features = features;
  layer.norm.eps =
      fields.positive({defaults.norm_eps_field}, defaults.norm_eps);
  AttentionOptions& attention = layer.attention;
  attention.features = features;
  attention.heads = heads;
  attention.kv_heads =
      fields.kv_heads({"num_key_value_heads"}, heads, kv_heads);
  attention.head_features =
      fields.size({"head_dim"}, head_features.value_or(features / heads));
  attention.query_bias = attention.key_bias = false;
  attention.value_bias = attention.output_bias = false;
  attention.causal = true;
  attention.dropout =
      fields.probability({"attention_dropout"}, defaults.attention_dropout);
  attention.deviation = decoder.deviation;
  layer.feed_forward.features = features;
  layer.feed_forward.inner = fields.size({"intermediate_size"});
  layer.feed_forward.activation =
      fields.activation({defaults.activation_field}, defaults.activation);
  layer.feed_forward.gated = defaults.gated;
  layer.feed_forward.bias = false;
  layer.feed_forward.deviation = decoder.deviation;

  decoder.layers = equal_layers(layer, fields.count({"num_hidden_layers"}));
  decoder.rotary = fields.rotary(
      static_cast<int64_t>(
          static_cast<double>(attention.head_features) * share),
      fields.size({"max_position_embeddings"}, defaults.max_positions),
      defaults.rotary_base);
  decoder.final_norm = layer.norm;
  decoder.tied_head =
      fields.get<bool>({"tie_word_embeddings"}, defaults.tied_head);
  decoder.classifier = ClassifierOptions::from_config(fields);
  return decoder;
}

void set_attention_bias(
    DecoderConfig& decoder,
    bool query_key_value,
    bool output) {
  for (TransformerLayerOptions& layer : decoder.layers) {
    AttentionOptions& attention = layer.attention;
    attention.query_bias = attention.key_bias = query_key_value;
    attention.value_bias = query_key_value;
    attention.output_bias = output;
  }
}

void read_biases(const ConfigFields& fields, DecoderConfig& decoder) {
  const bool attention = fields.get<bool>({"attention_bias"}, false);
  set_attention_bias(decoder, attention, attention);
  const bool feed_forward = fields.get<bool>({"mlp_bias"}, false);
  for_layers(decoder, [&](TransformerLayerOptions& layer) {
    layer.feed_forward.bias = feed_forward;
  });
}

void add_query_key_norms(DecoderConfig& decoder) {
  for (TransformerLayerOptions& layer : decoder.layers) {
    layer.attention.query_key_norm = layer.norm;
  }
}

NameTable with_query_key_norms(NameTable table) {
  for (const std::string part : {"q", "k"}) {
    table.base.push_back(
        {"layers.*.self_attn." + part + "_norm",
         {part == "q" ? "layers.*.attention.query_norm"
                      : "layers.*.attention.key_norm"}});
  }
  return table;
}

void read_windows(
    const ConfigFields& fields,
    DecoderConfig& decoder,
    IsLocal is_local) {
  if (!fields.get<bool>({"use_sliding_window"}, false)) {
    return;
  }
  const auto first = fields.get<int64_t>({"max_window_layers"}, 28);
  TESSERA_CHECK(
      first >= 0,
      "{}: 'max_window_layers' is {}; it must be 0 or more",
      fields.origin(),
      first);
  const auto window = fields.find<int64_t>({"sliding_window"});
  TESSERA_CHECK(
      !window || *window >= 1,
      "{}: 'use_sliding_window' is true, but 'sliding_window' is {}; it must be 1 or more",
      fields.origin(),
      window.value_or(0));
  decoder.window = fields.size({"sliding_window"}, 4096);
  set_local_layers(fields, decoder, [&](size_t i) {
    return is_local(i, static_cast<size_t>(first));
  });
}

bool read_layer_types(
    const ConfigFields& fields,
    DecoderConfig& decoder,
    std::optional<int64_t> otherwise,
    const std::function<bool(size_t layer)>& is_local) {
  if (fields.is_null("sliding_window") ||
      !fields.find_or<int64_t>({"sliding_window"}, otherwise)) {
    return false;
  }
  decoder.window = fields.size({"sliding_window"}, otherwise);
  set_local_layers(fields, decoder, is_local);
  return true;
}

void read_local_rotary(
    const ConfigFields& fields,
    DecoderConfig& decoder,
    double base,
    double local_base) {
  const auto rope = fields.json("rope_parameters");
  const auto section = [&](const char* kind, double default_base) {
    nlohmann::json inner = nlohmann::json::object();
    if (rope && rope->is_object() && rope->contains(kind)) {
      inner = rope->at(kind);
    }
    const ConfigFields one(
        {{"rope_parameters", inner}}, fields.origin() + ": '" + kind + "'");
    return one.rotary(
        decoder.rotary->features, decoder.rotary->max_positions, default_base);
  };
  const bool has_sections =
      rope && rope->is_object() &&
      (rope->contains("full_attention") || rope->contains("sliding_attention"));
  if (has_sections) {
    decoder.rotary = section("full_attention", base);
    decoder.local_rotary = section("sliding_attention", local_base);
    return;
  }
  // Older files: scaling is of the layers without windows only.
  decoder.local_rotary = RotaryOptions{
      .features = decoder.rotary->features,
      .base = fields.positive({"rope_local_base_freq"}, local_base),
      .max_positions = decoder.rotary->max_positions};
}

NameTable llama_like_names(FeedForwardNames feed_forward) {
  NameTable table{
      .prefix = "model.",
      .base =
          {{"embed_tokens", {"embeddings.tokens"}},
           {"layers.*.input_layernorm", {"layers.*.attention_norm"}},
           {"layers.*.self_attn.q_proj", {"layers.*.attention.query"}},
           {"layers.*.self_attn.k_proj", {"layers.*.attention.key"}},
           {"layers.*.self_attn.v_proj", {"layers.*.attention.value"}},
           {"layers.*.self_attn.o_proj", {"layers.*.attention.output"}},
           {"layers.*.post_attention_layernorm",
            {"layers.*.feed_forward_norm"}},
           {"norm", {"final_norm"}}},
      // Frequencies saved by old versions.
      .ignored = {"layers.*.self_attn.rotary_emb.inv_freq"}};
  if (feed_forward == FeedForwardNames::kGated) {
    table.base.push_back(
        {"layers.*.mlp.gate_proj", {"layers.*.feed_forward.gate"}});
  }
  if (feed_forward != FeedForwardNames::kNone) {
    table.base.push_back(
        {"layers.*.mlp.up_proj", {"layers.*.feed_forward.up"}});
    table.base.push_back(
        {"layers.*.mlp.down_proj", {"layers.*.feed_forward.down"}});
  }
  return table;
}

NameTable branch_norm_names() {
  NameTable table = with_query_key_norms(llama_like_names());
  for (NameRule& rule : table.base) {
    if (rule.foreign == "layers.*.input_layernorm") {
      rule.foreign = "layers.*.post_attention_layernorm";
    } else if (rule.foreign == "layers.*.post_attention_layernorm") {
      rule.foreign = "layers.*.post_feedforward_layernorm";
    }
  }
  return table;
}

} // namespace tessera::zoo
