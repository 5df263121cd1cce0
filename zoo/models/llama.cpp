// SPDX-License-Identifier: Apache-2.0
// LLaMA 1 to 3 (arXiv:2302.13971, arXiv:2307.09288, arXiv:2407.21783).

#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

DecoderConfig llama_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(fields, {.max_positions = 2048});
  read_biases(fields, decoder);
  return decoder;
}

NameTable llama_names() {
  return llama_like_names();
}

} // namespace

ModelFamily llama_family() {
  return decoder_family(
      {.model_type = "llama",
       .base = "LlamaModel",
       .causal_lm = "LlamaForCausalLM",
       .sequence_classification = "LlamaForSequenceClassification",
       .token_classification = "LlamaForTokenClassification",
       .question_answering = "LlamaForQuestionAnswering",
       .config = llama_config,
       .names = llama_names,
       .answers_prefix = "transformer."});
}

} // namespace tessera::zoo
