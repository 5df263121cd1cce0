// SPDX-License-Identifier: Apache-2.0
// Mistral (arXiv:2310.06825) and Ministral, dense.

#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

DecoderConfig mistral_config(const ConfigFields& fields) {
  DecoderConfig decoder =
      llama_like_config(fields, {.max_positions = 131072, .kv_heads = 8});
  // All layers or, in Ministral, those of `layer_types`.
  read_layer_types(fields, decoder, 4096, [](size_t) { return true; });
  return decoder;
}

NameTable mistral_names() {
  return llama_like_names();
}

} // namespace

ModelFamily mistral_family() {
  return decoder_family(
      {.model_type = "mistral",
       .base = "MistralModel",
       .causal_lm = "MistralForCausalLM",
       .sequence_classification = "MistralForSequenceClassification",
       .token_classification = "MistralForTokenClassification",
       .question_answering = "MistralForQuestionAnswering",
       .config = mistral_config,
       .names = mistral_names});
}

ModelFamily ministral_family() {
  return decoder_family(
      {.model_type = "ministral",
       .base = "MinistralModel",
       .causal_lm = "MinistralForCausalLM",
       .sequence_classification = "MinistralForSequenceClassification",
       .token_classification = "MinistralForTokenClassification",
       .question_answering = "MinistralForQuestionAnswering",
       .config = mistral_config,
       .names = mistral_names,
       .answers_prefix = "transformer."});
}

} // namespace tessera::zoo
