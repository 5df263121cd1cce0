// SPDX-License-Identifier: Apache-2.0
// Granite (arXiv:2408.13359): LLaMA with scaled embeddings, residual branches,
// attention and logits.

#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

DecoderConfig granite_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(fields, {.max_positions = 2048});
  read_biases(fields, decoder);
  for_layers(decoder, [&](TransformerLayerOptions& layer) {
    layer.attention.scale = fields.number({"attention_multiplier"}, 1);
    layer.residual_scale = fields.number({"residual_multiplier"}, 1);
  });
  decoder.embedding_scale = fields.number({"embedding_multiplier"}, 1);
  decoder.logit_scale = 1 / fields.positive({"logits_scaling"}, 1.0);
  return decoder;
}

NameTable granite_names() {
  return llama_like_names();
}

} // namespace

ModelFamily granite_family() {
  return decoder_family(
      {.model_type = "granite",
       .base = "GraniteModel",
       .causal_lm = "GraniteForCausalLM",
       .config = granite_config,
       .names = granite_names});
}

} // namespace tessera::zoo
