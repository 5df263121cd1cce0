// SPDX-License-Identifier: Apache-2.0
// StableLM (arXiv:2402.17834).

#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

DecoderConfig stablelm_config(const ConfigFields& fields) {
  fields.require_only("qk_layernorm", false);
  fields.require_only("hidden_dropout", 0.0);
  DecoderConfig decoder = llama_like_config(
      fields,
      {.max_positions = 4096,
       .norm_eps = 1e-5,
       .kv_heads = 32,
       .norm = NormKind::kLayerNorm,
       .norm_eps_field = "layer_norm_eps",
       .rotary_share = 0.25});
  set_attention_bias(
      decoder, fields.get<bool>({"use_qkv_bias"}, false), /*output=*/false);
  const bool parallel = fields.get<bool>({"use_parallel_residual"}, false);
  for_layers(decoder, [&](TransformerLayerOptions& layer) {
    layer.parallel_halves = parallel;
  });
  return decoder;
}

NameTable stablelm_names() {
  return llama_like_names();
}

} // namespace

ModelFamily stablelm_family() {
  return decoder_family(
      {.model_type = "stablelm",
       .base = "StableLmModel",
       .causal_lm = "StableLmForCausalLM",
       .sequence_classification = "StableLmForSequenceClassification",
       .token_classification = "StableLmForTokenClassification",
       .config = stablelm_config,
       .names = stablelm_names});
}

} // namespace tessera::zoo
