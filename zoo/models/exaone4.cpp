// SPDX-License-Identifier: Apache-2.0
// EXAONE 4.0 (arXiv:2507.11407).

#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

DecoderConfig exaone4_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(
      fields, {.max_positions = 2048, .norm_eps = 1e-5, .kv_heads = 32});
  add_query_key_norms(decoder);
  for_layers(decoder, [](TransformerLayerOptions& layer) {
    layer.placement = NormPlacement::kBranch;
  });
  if (!fields.is_null("sliding_window")) {
    const auto pattern =
        static_cast<size_t>(fields.size({"sliding_window_pattern"}, 4));
    read_layer_types(fields, decoder, 4096, [pattern](size_t layer) {
      return (layer + 1) % pattern != 0;
    });
    for_layers(decoder, [](TransformerLayerOptions& layer) {
      layer.rotary = layer.local;
    });
  }
  return decoder;
}

NameTable exaone4_names() {
  return branch_norm_names();
}

} // namespace

ModelFamily exaone4_family() {
  return decoder_family(
      {.model_type = "exaone4",
       .base = "Exaone4Model",
       .causal_lm = "Exaone4ForCausalLM",
       .sequence_classification = "Exaone4ForSequenceClassification",
       .token_classification = "Exaone4ForTokenClassification",
       .question_answering = "Exaone4ForQuestionAnswering",
       .config = exaone4_config,
       .names = exaone4_names,
       .answers_prefix = "transformer."});
}

} // namespace tessera::zoo
