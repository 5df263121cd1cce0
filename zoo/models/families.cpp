// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/families.h"

namespace tessera::zoo {

std::vector<ModelFamily> built_in_families() {
  return {
      bert_family(),    chatglm_family(),   cpm1_family(),  cpm2_family(),
      glm4_family(),    glm_family(),       gpt2_family(),  gptj_family(),
      llama_family(),   moco_v3_family(),   mt5_family(),   opt_family(),
      qwen2_family(),   qwen2_moe_family(), qwen3_family(), qwen3_moe_family(),
      roberta_family(), swin_family(),      t5_family(),    vit_family(),
      vit_mae_family(),
  };
}

ModelFamily decoder_family(const DecoderFamily& family) {
  const auto make = [family](DecoderHead head) -> MakeModel {
    return [family, head](
               const ConfigFields& fields,
               const LayerContext& context,
               nlohmann::json json) -> std::shared_ptr<Model> {
      NameTable names = family.names();
      names.is_base = head == DecoderHead::kBase;
      names.head = {{family.head, {"head"}}, {family.score, {"score"}}};
      // Heads that this architecture does not have, or a tied one once more.
      for (const std::string& other : {family.head, family.score}) {
        names.ignored.push_back(other + ".weight");
        names.ignored.push_back(other + ".bias");
      }
      return std::make_shared<Decoder>(
          family.config(fields),
          head,
          context,
          std::move(json),
          std::move(names));
    };
  };
  ModelFamily result{
      family.model_type,
      {{family.causal_lm, make(DecoderHead::kCausalLm)},
       {family.base, make(DecoderHead::kBase)}}};
  if (!family.sequence_classification.empty()) {
    result.architectures.push_back(
        {family.sequence_classification,
         make(DecoderHead::kSequenceClassification)});
  }
  return result;
}

} // namespace tessera::zoo
