// SPDX-License-Identifier: Apache-2.0
// Qwen2 (arXiv:2407.10671) and Qwen3 (arXiv:2505.09388), dense.

#include "tessera/zoo/models/llama_like.h"

namespace tessera::zoo {

namespace {

DecoderConfig qwen2_config(const ConfigFields& fields) {
  DecoderConfig decoder = llama_like_config(fields, {.kv_heads = 32});
  set_attention_bias(decoder, /*query_key_value=*/true, /*output=*/false);
  read_windows(fields, decoder);
  return decoder;
}

DecoderConfig qwen3_config(const ConfigFields& fields) {
  DecoderConfig decoder =
      llama_like_config(fields, {.kv_heads = 32, .head_features = 128});
  const bool bias = fields.get<bool>({"attention_bias"}, false);
  set_attention_bias(decoder, bias, bias);
  add_query_key_norms(decoder);
  read_windows(fields, decoder);
  return decoder;
}

NameTable qwen2_names() {
  return llama_like_names();
}

NameTable qwen3_names() {
  return with_query_key_norms(llama_like_names());
}

} // namespace

ModelFamily qwen2_family() {
  return decoder_family(
      {.model_type = "qwen2",
       .base = "Qwen2Model",
       .causal_lm = "Qwen2ForCausalLM",
       .sequence_classification = "Qwen2ForSequenceClassification",
       .token_classification = "Qwen2ForTokenClassification",
       .question_answering = "Qwen2ForQuestionAnswering",
       .config = qwen2_config,
       .names = qwen2_names,
       .answers_prefix = "transformer."});
}

ModelFamily qwen3_family() {
  return decoder_family(
      {.model_type = "qwen3",
       .base = "Qwen3Model",
       .causal_lm = "Qwen3ForCausalLM",
       .sequence_classification = "Qwen3ForSequenceClassification",
       .token_classification = "Qwen3ForTokenClassification",
       .question_answering = "Qwen3ForQuestionAnswering",
       .config = qwen3_config,
       .names = qwen3_names,
       .answers_prefix = "transformer."});
}

} // namespace tessera::zoo
