// SPDX-License-Identifier: Apache-2.0
// Seed-OSS (ByteDance, 2025).

#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

DecoderConfig seed_oss_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(
      fields,
      {.max_positions = 524288,
       .kv_heads = 8,
       .head_features = 128,
       .padding_token = 1,
       .attention_dropout = 0.1});
  set_attention_bias(
      decoder,
      fields.get<bool>({"attention_bias"}, true),
      fields.get<bool>({"attention_out_bias"}, false));
  for_layers(decoder, [&](TransformerLayerOptions& layer) {
    layer.feed_forward.bias = fields.get<bool>({"mlp_bias"}, false);
    layer.dropout = fields.probability({"residual_dropout"}, 0.1);
  });
  return decoder;
}

NameTable seed_oss_names() {
  return llama_like_names();
}

} // namespace

ModelFamily seed_oss_family() {
  return decoder_family(
      {.model_type = "seed_oss",
       .base = "SeedOssModel",
       .causal_lm = "SeedOssForCausalLM",
       .sequence_classification = "SeedOssForSequenceClassification",
       .token_classification = "SeedOssForTokenClassification",
       .question_answering = "SeedOssForQuestionAnswering",
       .config = seed_oss_config,
       .names = seed_oss_names,
       .answers_prefix = "transformer."});
}

} // namespace tessera::zoo
