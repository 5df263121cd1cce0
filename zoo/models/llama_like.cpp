// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

DecoderConfig llama_like_config(const ConfigFields& fields) {
  fields.require_only("partial_rotary_factor", 1.0);
  return llama_like_config(fields, /*rotary_share=*/1);
}

DecoderConfig llama_like_config(
    const ConfigFields& fields,
    double rotary_share) {
  const int64_t features = fields.size({"hidden_size"});
  const int64_t heads = fields.size({"num_attention_heads"});
  TESSERA_CHECK(
      fields.find<int64_t>({"head_dim"}) || features % heads == 0,
      fields.origin(),
      ": hidden_size ",
      features,
      " can not be divided by num_attention_heads ",
      heads);
  DecoderConfig decoder;
  decoder.vocab = fields.size({"vocab_size"});
  decoder.features = features;
  decoder.padding_token = fields.token({"pad_token_id"}, decoder.vocab);
  decoder.padding_id = decoder.padding_token;
  decoder.deviation = fields.deviation({"initializer_range"});

  TransformerLayerOptions layer;
  layer.norm.kind = NormKind::kRmsNorm;
  layer.norm.features = features;
  layer.norm.eps = fields.positive({"rms_norm_eps"}, 1e-6);
  AttentionOptions& attention = layer.attention;
  attention.features = features;
  attention.heads = heads;
  attention.kv_heads = fields.size({"num_key_value_heads"}, heads);
  attention.head_features = fields.size({"head_dim"}, features / heads);
  attention.query_bias = attention.key_bias = false;
  attention.value_bias = attention.output_bias = false;
  attention.causal = true;
  attention.dropout = fields.probability({"attention_dropout"});
  attention.deviation = decoder.deviation;
  layer.feed_forward.features = features;
  layer.feed_forward.inner = fields.size({"intermediate_size"});
  layer.feed_forward.activation =
      fields.get<std::string>({"hidden_act"}, "silu");
  layer.feed_forward.gated = true;
  layer.feed_forward.bias = false;
  layer.feed_forward.deviation = decoder.deviation;

  decoder.layers = equal_layers(layer, fields.count({"num_hidden_layers"}));
  decoder.rotary = fields.rotary(
      static_cast<int64_t>(
          static_cast<double>(attention.head_features) * rotary_share),
      fields.size({"max_position_embeddings"}, 2048));
  decoder.final_norm = layer.norm;
  decoder.tied_head = fields.get<bool>({"tie_word_embeddings"}, false);
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
  const auto types = fields.json("layer_types");
  const auto first =
      static_cast<size_t>(fields.get<int64_t>({"max_window_layers"}, 28));
  TESSERA_CHECK(
      !types || (types->is_array() && types->size() == decoder.layers.size()),
      fields.origin(),
      ": 'layer_types' must be a list with a type for each of the ",
      decoder.layers.size(),
      " layers");
  decoder.window = fields.size({"sliding_window"}, 4096);
  for (size_t i = 0; i < decoder.layers.size(); ++i) {
    decoder.layers[i].local =
        types ? (*types)[i] == "sliding_attention" : is_local(i, first);
  }
}

NameTable llama_like_names(bool feed_forward) {
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
      // Frequencies that old versions saved.
      .ignored = {"layers.*.self_attn.rotary_emb.inv_freq"}};
  if (feed_forward) {
    table.base.push_back(
        {"layers.*.mlp.gate_proj", {"layers.*.feed_forward.gate"}});
    table.base.push_back(
        {"layers.*.mlp.up_proj", {"layers.*.feed_forward.up"}});
    table.base.push_back(
        {"layers.*.mlp.down_proj", {"layers.*.feed_forward.down"}});
  }
  return table;
}

} // namespace tessera::zoo
