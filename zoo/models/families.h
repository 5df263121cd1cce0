// SPDX-License-Identifier: Apache-2.0
#pragma once
// The built-in model families: one function each, in its own file, and one line
// in families.cpp.

#include "tessera/zoo/models/decoder.h"
#include "tessera/zoo/models/registry.h"

#include <vector>

namespace tessera::zoo {

std::vector<ModelFamily> built_in_families();

ModelFamily arcee_family();
ModelFamily bert_family();
ModelFamily chatglm_family();
ModelFamily cohere_family();
ModelFamily cohere2_family();
ModelFamily cpm1_family();
ModelFamily cpm2_family();
ModelFamily cpm3_family();
ModelFamily ernie4_5_family();
ModelFamily exaone4_family();
ModelFamily falcon_family();
ModelFamily gemma_family();
ModelFamily gemma3_text_family();
ModelFamily glm_family();
ModelFamily glm4_family();
ModelFamily gpt2_family();
ModelFamily gpt_neo_family();
ModelFamily gptj_family();
ModelFamily granite_family();
ModelFamily helium_family();
ModelFamily llama_family();
ModelFamily longformer_family();
ModelFamily ministral_family();
ModelFamily mistral_family();
ModelFamily moco_v3_family();
ModelFamily mpt_family();
ModelFamily mt5_family();
ModelFamily nemotron_family();
ModelFamily olmo_family();
ModelFamily olmo2_family();
ModelFamily olmo3_family();
ModelFamily opt_family();
ModelFamily phi_family();
ModelFamily phi3_family();
ModelFamily qwen2_family();
ModelFamily qwen2_moe_family();
ModelFamily qwen3_family();
ModelFamily qwen3_moe_family();
ModelFamily roberta_family();
ModelFamily roformer_family();
ModelFamily seed_oss_family();
ModelFamily smollm3_family();
ModelFamily stablelm_family();
ModelFamily starcoder2_family();
ModelFamily swin_family();
ModelFamily t5_family();
ModelFamily vit_family();
ModelFamily vit_mae_family();

/// How a family of decoders reads its configurations and names its weights.
struct DecoderFamily {
  std::string model_type;
  std::string base; ///< "GPT2Model"
  std::string causal_lm; ///< "GPT2LMHeadModel"
  std::string sequence_classification; ///< "" if there is none
  std::string token_classification; ///< likewise
  std::string question_answering; ///< likewise
  DecoderConfig (*config)(const ConfigFields& fields);
  /// Without heads, which are the same in all families.
  NameTable (*names)();
  /// The names of the heads of the language model and the classifiers.
  std::string head = "lm_head";
  std::string score = "score";
  std::string token_score = "score";
  /// The prefix of the question answering model, if it differs from the
  /// others'.
  std::string answers_prefix;
};

ModelFamily decoder_family(const DecoderFamily& family);

} // namespace tessera::zoo
