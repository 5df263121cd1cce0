// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/families.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <utility>

namespace tessera::zoo {

std::vector<ModelFamily> built_in_families() {
  return {
      arcee_family(),       bert_family(),       chatglm_family(),
      cohere_family(),      cohere2_family(),    cpm1_family(),
      cpm2_family(),        cpm3_family(),       ernie4_5_family(),
      exaone4_family(),     falcon_family(),     gemma_family(),
      gemma3_text_family(), glm_family(),        glm4_family(),
      gpt2_family(),        gpt_neo_family(),    gptj_family(),
      granite_family(),     helium_family(),     llama_family(),
      longformer_family(),  ministral_family(),  mistral_family(),
      moco_v3_family(),     mpt_family(),        mt5_family(),
      nemotron_family(),    olmo_family(),       olmo2_family(),
      olmo3_family(),       opt_family(),        phi_family(),
      phi3_family(),        qwen2_family(),      qwen2_moe_family(),
      qwen3_family(),       qwen3_moe_family(),  roberta_family(),
      roformer_family(),    seed_oss_family(),   smollm3_family(),
      stablelm_family(),    starcoder2_family(), swin_family(),
      t5_family(),          vit_family(),        vit_mae_family(),
  };
}

namespace {

/// The family's name of the token embedding, without prefix.
std::string embedding_in(const NameTable& names) {
  const auto line = std::find_if(
      names.base.begin(), names.base.end(), [](const NameRule& rule) {
        return rule.native.front() == "embeddings.tokens";
      });
  TESSERA_CHECK(
      line != names.base.end(), "a decoder's names lack 'embeddings.tokens'");
  return line->foreign;
}

NameTable names_of(const DecoderFamily& family, DecoderHead head) {
  NameTable names = family.names();
  names.is_base = head == DecoderHead::kBase;
  names.other_prefix = family.answers_prefix;
  if (head == DecoderHead::kQuestionAnswering &&
      !family.answers_prefix.empty()) {
    std::swap(names.prefix, names.other_prefix);
  }
  const std::string score =
      head == DecoderHead::kQuestionAnswering     ? "qa_outputs"
      : head == DecoderHead::kTokenClassification ? family.token_score
                                                  : family.score;
  names.head = {{family.head, {"head"}}, {score, {"score"}}};
  // Heads of other architectures, or a duplicate of a tied head.
  for (const std::string& other :
       {family.head,
        family.score,
        family.token_score,
        std::string("qa_outputs")}) {
    names.ignored.push_back(other + ".weight");
    names.ignored.push_back(other + ".bias");
  }
  names.tied = {{family.head + ".weight", embedding_in(names) + ".weight"}};
  return names;
}

/// Whether the checkpoint has a separate head although config.json ties it.
bool has_own_head(const DecoderFamily& family, const ConfigFields& fields) {
  const NameTable names = family.names();
  const std::string embedding = embedding_in(names) + ".weight";
  return has_own_head(
      fields, {names.prefix + embedding, embedding}, {family.head + ".weight"});
}

DecoderConfig config_of(
    const DecoderFamily& family,
    DecoderHead head,
    const ConfigFields& fields) {
  DecoderConfig config = family.config(fields);
  if (head == DecoderHead::kTokenClassification) {
    config.classifier_dropout =
        fields.probability({"classifier_dropout", "hidden_dropout"}, 0.1);
    config.token_bias = fields.get<bool>({"token_classification_bias"}, true);
  }
  return config;
}

} // namespace

ModelFamily decoder_family(const DecoderFamily& family) {
  const auto make = [family](DecoderHead head) -> MakeModel {
    return [family, head](
               const ConfigFields& fields,
               const LayerContext& context,
               nlohmann::json json) -> std::shared_ptr<Model> {
      DecoderConfig config = config_of(family, head, fields);
      if (head == DecoderHead::kCausalLm && config.tied_head &&
          has_own_head(family, fields)) {
        config.tied_head = false;
        json["tie_word_embeddings"] = false;
      }
      return std::make_shared<Decoder>(
          config, head, context, std::move(json), names_of(family, head));
    };
  };
  ModelFamily result{
      .model_type = family.model_type,
      .architectures =
          {{family.causal_lm, make(DecoderHead::kCausalLm)},
           {family.base, make(DecoderHead::kBase)}},
      .position_limit = [config = family.config](const ConfigFields& fields) {
        return config(fields).position_limit();
      }};
  for (const auto& [name, head] :
       {std::pair(
            family.sequence_classification,
            DecoderHead::kSequenceClassification),
        std::pair(
            family.token_classification, DecoderHead::kTokenClassification),
        std::pair(
            family.question_answering, DecoderHead::kQuestionAnswering)}) {
    if (!name.empty()) {
      result.architectures.push_back({name, make(head)});
    }
  }
  return result;
}

} // namespace tessera::zoo
