// SPDX-License-Identifier: Apache-2.0
// Nemotron-4 and Minitron (arXiv:2402.16819, arXiv:2407.14679).

#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

DecoderConfig nemotron_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(
      fields,
      {.max_positions = 4096,
       .norm_eps = 1e-5,
       .deviation = 0.0134,
       .norm = NormKind::kLayerNorm,
       .norm_eps_field = "norm_eps",
       .activation = "relu2",
       .gated = false,
       .rotary_share = 0.5});
  read_biases(fields, decoder);
  for_layers(decoder, [](TransformerLayerOptions& layer) {
    layer.norm.weight_offset = 1;
  });
  decoder.final_norm->weight_offset = 1;
  return decoder;
}

NameTable nemotron_names() {
  return llama_like_names(FeedForwardNames::kPlain);
}

} // namespace

ModelFamily nemotron_family() {
  return decoder_family(
      {.model_type = "nemotron",
       .base = "NemotronModel",
       .causal_lm = "NemotronForCausalLM",
       .sequence_classification = "NemotronForSequenceClassification",
       .token_classification = "NemotronForTokenClassification",
       .question_answering = "NemotronForQuestionAnswering",
       .config = nemotron_config,
       .names = nemotron_names,
       .answers_prefix = "transformer."});
}

} // namespace tessera::zoo
