// SPDX-License-Identifier: Apache-2.0
// T5 (arXiv:1910.10683), T5 v1.1 and Flan-T5 (arXiv:2210.11416), which are
// gated and have an untied head, and mT5 (arXiv:2010.11934).

#include "tessera/zoo/models/families.h"
#include "tessera/zoo/models/t5_like.h"

#include <cmath>

namespace tessera::zoo {

namespace {

/// Whether the head is tied to the embedding. config.json depends on what wrote
/// it: transformers 5 writes `tie_word_embeddings` as true for all of these
/// models and decides by the checkpoint.
bool is_tied(const ConfigFields& fields, bool scaled) {
  const bool is_own = has_own_head(
      fields,
      {"shared.weight",
       "encoder.embed_tokens.weight",
       "decoder.embed_tokens.weight"},
      {"lm_head.weight"});
  return !is_own && (fields.checkpoint() != nullptr || scaled ||
                     fields.get<bool>({"tie_word_embeddings"}, true));
}

EncoderDecoderConfig t5_config(const ConfigFields& fields) {
  EncoderDecoderConfig model = t5_like_config(fields);
  const bool scaled = fields.get<bool>(
      {"scale_decoder_outputs"},
      fields.get<bool>({"tie_word_embeddings"}, true));
  model.tied_head = is_tied(fields, scaled);
  if (scaled) {
    model.head_scale = 1 / std::sqrt(static_cast<double>(model.features));
  }
  return model;
}

EncoderDecoderConfig mt5_config(const ConfigFields& fields) {
  EncoderDecoderConfig model =
      t5_like_config(fields, {.activation = "gated-gelu"});
  model.tied_head = is_tied(fields, /*scaled=*/false);
  return model;
}

/// The names of one half; `feed_forward` is the index of that part of a block.
void add_half(
    NameTable& table,
    const std::string& half,
    const std::string& feed_forward) {
  const std::string block = half + ".block.*.layer.";
  const std::string layer = half + ".layers.*.";
  const auto add = [&](const std::string& foreign, const std::string& native) {
    table.base.push_back({block + foreign, {layer + native}});
  };
  const auto add_attention = [&](const std::string& foreign,
                                 const std::string& native) {
    add(foreign + ".q", native + ".query");
    add(foreign + ".k", native + ".key");
    add(foreign + ".v", native + ".value");
    add(foreign + ".o", native + ".output");
  };
  add_attention("0.SelfAttention", "attention");
  add("0.layer_norm", "attention_norm");
  if (half == "decoder") {
    add_attention("1.EncDecAttention", "cross_attention");
    add("1.layer_norm", "cross_attention_norm");
  }
  const std::string dense = feed_forward + ".DenseReluDense.";
  add(dense + "wi_0", "feed_forward.gate");
  add(dense + "wi_1", "feed_forward.up");
  add(dense + "wo", "feed_forward.down");
  add(feed_forward + ".layer_norm", "feed_forward_norm");
  table.base.push_back(
      {half + ".block.0.layer.0.SelfAttention.relative_attention_bias",
       {half + ".relative_bias"}});
  table.base.push_back({half + ".final_layer_norm", {half + ".norm"}});
}

NameTable gated_names() {
  NameTable table{
      .base = {{"shared", {"embeddings.tokens"}}, {"lm_head", {"head"}}},
      // Duplicates of tied weights, and an unused table of old versions.
      .ignored =
          {"encoder.embed_tokens.weight",
           "decoder.embed_tokens.weight",
           "lm_head.weight",
           "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias."
           "weight"},
      .tied = {
          {"encoder.embed_tokens.weight", "shared.weight"},
          {"decoder.embed_tokens.weight", "shared.weight"},
          {"lm_head.weight", "shared.weight"}}};
  add_half(table, "encoder", "1");
  add_half(table, "decoder", "2");
  return table;
}

NameTable plain_names() {
  NameTable table = gated_names();
  std::erase_if(table.base, [](const NameRule& rule) {
    return rule.foreign.ends_with(".wi_0");
  });
  for (NameRule& rule : table.base) {
    if (rule.foreign.ends_with(".wi_1")) {
      rule.foreign.resize(rule.foreign.size() - 2);
    }
  }
  return table;
}

MakeModel make(EncoderDecoderConfigOf config, EncoderDecoderHead head) {
  return [=](const ConfigFields& fields,
             const LayerContext& context,
             nlohmann::json json) {
    const bool gated = config(fields).encoder.layers.front().feed_forward.gated;
    return make_encoder_decoder(
        config, gated ? gated_names : plain_names, head)(
        fields, context, std::move(json));
  };
}

ModelFamily family(
    const std::string& type,
    const std::string& classes,
    EncoderDecoderConfigOf config) {
  return {
      type,
      {{classes + "ForConditionalGeneration",
        make(config, EncoderDecoderHead::kLanguageModel)},
       {classes + "Model", make(config, EncoderDecoderHead::kBase)},
       {classes + "EncoderModel",
        make(config, EncoderDecoderHead::kEncoderOnly)},
       {classes + "ForSequenceClassification",
        make(config, EncoderDecoderHead::kSequenceClassification)},
       {classes + "ForTokenClassification",
        make(config, EncoderDecoderHead::kTokenClassification)},
       {classes + "ForQuestionAnswering",
        make(config, EncoderDecoderHead::kQuestionAnswering)}}};
}

} // namespace

ModelFamily t5_family() {
  return family("t5", "T5", t5_config);
}

ModelFamily mt5_family() {
  return family("mt5", "MT5", mt5_config);
}

} // namespace tessera::zoo
