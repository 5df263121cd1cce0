// SPDX-License-Identifier: Apache-2.0
// RoFormer (arXiv:2104.09864): BERT with rotary positions.

#include "tessera/zoo/models/bert_like.h"
#include "tessera/zoo/models/families.h"

#include <string>
#include <utility>

namespace tessera::zoo {

namespace {

EncoderConfig roformer_config(const ConfigFields& fields) {
  EncoderConfig encoder =
      bert_like_config(fields, /*padding_id=*/0, /*positions=*/1536);
  encoder.position_kind = EncoderPositions::kRotaryTable;
  encoder.embedding_features =
      fields.size({"embedding_size"}, encoder.features);
  encoder.norm.features = encoder.embedding_features;
  const bool rotates_values = fields.get<bool>({"rotary_value"}, false);
  for (TransformerLayerOptions& layer : encoder.layers) {
    layer.attention.rotates_values = rotates_values;
  }

  encoder.has_pooler = false;
  encoder.pooler_activation = encoder.head_activation;
  encoder.dropout_before_pooler = true;
  // All heads use the layers' dropout.
  encoder.classifier_dropout = encoder.embedding_dropout;
  // How transformers summarizes a choice unless these fields say otherwise.
  fields.require_only("summary_type", std::string("last"));
  fields.require_only("summary_use_proj", false);
  fields.require_only("summary_activation", std::string());
  fields.require_only("summary_first_dropout", 0.0);
  fields.require_only("summary_last_dropout", 0.0);
  encoder.chooses_by_last_token = true;
  encoder.choice_dropout = 0;
  return encoder;
}

NameTable roformer_names(EncoderHead head) {
  // Sequence classification is RoBERTa's, the masked LM head BERT's.
  NameTable table = roberta_like_names("roformer.", head);
  std::erase_if(table.head, [](const NameRule& rule) {
    return rule.foreign.starts_with("lm_head");
  });
  for (NameRule& rule : bert_like_prediction_names()) {
    table.head.push_back(std::move(rule));
  }
  table.base.push_back({"embeddings_project", {"project_in"}});
  table.base.push_back({"encoder.embed_positions.weight", {"rotary_table"}});
  return table;
}

} // namespace

ModelFamily roformer_family() {
  return encoder_family(
      {.model_type = "roformer",
       .classes = "RoFormer",
       .config = roformer_config,
       .names = roformer_names});
}

} // namespace tessera::zoo
