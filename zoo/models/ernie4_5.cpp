// SPDX-License-Identifier: Apache-2.0
// ERNIE 4.5, dense (Baidu, 2025).

#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

DecoderConfig ernie4_5_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(
      fields,
      {.max_positions = 131072,
       .norm_eps = 1e-5,
       .kv_heads = 2,
       .head_features = 128,
       .padding_token = 0,
       .tied_head = true,
       .rotary_base = 500000});
  decoder.rotary->layout = RotaryLayout::kPairs;
  const bool bias = fields.get<bool>({"use_bias"}, false);
  set_attention_bias(decoder, bias, bias);
  for_layers(decoder, [&](TransformerLayerOptions& layer) {
    layer.feed_forward.bias = bias;
  });
  return decoder;
}

NameTable ernie4_5_names() {
  return llama_like_names();
}

} // namespace

ModelFamily ernie4_5_family() {
  return decoder_family(
      {.model_type = "ernie4_5",
       .base = "Ernie4_5Model",
       .causal_lm = "Ernie4_5ForCausalLM",
       .config = ernie4_5_config,
       .names = ernie4_5_names});
}

} // namespace tessera::zoo
