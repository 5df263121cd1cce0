// SPDX-License-Identifier: Apache-2.0
// Command R (Cohere, 2024) and Command R7B (arXiv:2504.00698).

#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

DecoderConfig cohere_config(const ConfigFields& fields, double rotary_base) {
  fields.require_only("use_qk_norm", false);
  DecoderConfig decoder = llama_like_config(
      fields,
      {.max_positions = 8192,
       .norm_eps = 1e-5,
       .padding_token = 0,
       .tied_head = true,
       .norm = NormKind::kLayerNorm,
       .norm_eps_field = "layer_norm_eps",
       .rotary_base = rotary_base});
  decoder.rotary->layout = RotaryLayout::kPairs;
  decoder.logit_scale = fields.number({"logit_scale"}, 0.0625);
  const bool bias = fields.get<bool>({"attention_bias"}, false);
  set_attention_bias(decoder, bias, bias);
  for_layers(decoder, [](TransformerLayerOptions& layer) {
    layer.parallel_halves = true;
    layer.norm.bias = false;
  });
  decoder.final_norm->bias = false;
  return decoder;
}

DecoderConfig cohere_config(const ConfigFields& fields) {
  return cohere_config(fields, 500000);
}

DecoderConfig cohere2_config(const ConfigFields& fields) {
  DecoderConfig decoder = cohere_config(fields, 10000);
  const int64_t pattern = fields.size({"sliding_window_pattern"}, 4);
  if (read_layer_types(fields, decoder, 4096, [&](size_t layer) {
        return static_cast<int64_t>(layer + 1) % pattern != 0;
      })) {
    for_layers(decoder, [](TransformerLayerOptions& layer) {
      layer.rotary = layer.local;
    });
  }
  return decoder;
}

NameTable cohere_names() {
  return llama_like_names();
}

} // namespace

ModelFamily cohere_family() {
  return decoder_family(
      {.model_type = "cohere",
       .base = "CohereModel",
       .causal_lm = "CohereForCausalLM",
       .config = cohere_config,
       .names = cohere_names});
}

ModelFamily cohere2_family() {
  return decoder_family(
      {.model_type = "cohere2",
       .base = "Cohere2Model",
       .causal_lm = "Cohere2ForCausalLM",
       .config = cohere2_config,
       .names = cohere_names});
}

} // namespace tessera::zoo
