// SPDX-License-Identifier: Apache-2.0
// AFM (Arcee, 2025): LLaMA without gates.

#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

DecoderConfig arcee_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(
      fields,
      {.max_positions = 4096,
       .norm_eps = 1e-5,
       .activation = "relu2",
       .gated = false});
  read_biases(fields, decoder);
  return decoder;
}

NameTable arcee_names() {
  return llama_like_names(FeedForwardNames::kPlain);
}

} // namespace

ModelFamily arcee_family() {
  return decoder_family(
      {.model_type = "arcee",
       .base = "ArceeModel",
       .causal_lm = "ArceeForCausalLM",
       .sequence_classification = "ArceeForSequenceClassification",
       .token_classification = "ArceeForTokenClassification",
       .question_answering = "ArceeForQuestionAnswering",
       .config = arcee_config,
       .names = arcee_names,
       .answers_prefix = "transformer."});
}

} // namespace tessera::zoo
