// SPDX-License-Identifier: Apache-2.0
// Helium (Kyutai, 2025): LLaMA with pairs of rotated features.

#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

DecoderConfig helium_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(
      fields,
      {.max_positions = 4096,
       .norm_eps = 1e-8,
       .kv_heads = 20,
       .head_features = 128,
       .padding_token = 3,
       .rotary_base = 100000});
  decoder.rotary->layout = RotaryLayout::kPairs;
  read_biases(fields, decoder);
  for_layers(decoder, [](TransformerLayerOptions& layer) {
    layer.attention.output_bias = false;
  });
  return decoder;
}

NameTable helium_names() {
  return llama_like_names();
}

} // namespace

ModelFamily helium_family() {
  return decoder_family(
      {.model_type = "helium",
       .base = "HeliumModel",
       .causal_lm = "HeliumForCausalLM",
       .sequence_classification = "HeliumForSequenceClassification",
       .token_classification = "HeliumForTokenClassification",
       .config = helium_config,
       .names = helium_names});
}

} // namespace tessera::zoo
