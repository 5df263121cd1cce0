// SPDX-License-Identifier: Apache-2.0
// BERT (arXiv:1810.04805) and RoBERTa (arXiv:1907.11692).

#include "tessera/zoo/models/bert_like.h"
#include "tessera/zoo/models/families.h"

namespace tessera::zoo {

namespace {

EncoderConfig bert_config(const ConfigFields& fields) {
  return bert_like_config(fields, /*padding_id=*/0);
}

EncoderConfig roberta_config(const ConfigFields& fields) {
  EncoderConfig encoder = bert_like_config(fields, /*padding_id=*/1);
  TESSERA_CHECK(
      encoder.padding_id && *encoder.padding_id < encoder.positions - 1,
      fields.origin(),
      ": RoBERTa counts positions from pad_token_id on, which must be given "
      "and be below max_position_embeddings ",
      encoder.positions,
      " - 1");
  encoder.positions_skip_padding = true;
  encoder.head_activation = "gelu";
  encoder.dropout_before_pooler = true;
  return encoder;
}

NameTable bert_names(EncoderHead head) {
  NameTable table = bert_like_names("bert.", head);
  table.head = {
      {"cls.predictions", {"head"}},
      {"cls.predictions.transform.dense", {"head.dense"}},
      {"cls.predictions.transform.LayerNorm", {"head.norm"}},
      {"cls.seq_relationship", {"next_sentence"}}};
  table.head.push_back(
      {head == EncoderHead::kQuestionAnswering ? "qa_outputs" : "classifier",
       {"classifier"}});
  return table;
}

NameTable roberta_names(EncoderHead head) {
  NameTable table = bert_like_names("roberta.", head);
  table.head = {
      {"lm_head", {"head"}},
      {"lm_head.dense", {"head.dense"}},
      {"lm_head.layer_norm", {"head.norm"}}};
  switch (head) {
    case EncoderHead::kSequenceClassification:
      std::erase_if(table.base, [](const NameRule& rule) {
        return rule.ours.front() == "pooler";
      });
      table.head.push_back({"classifier.dense", {"pooler"}});
      table.head.push_back({"classifier.out_proj", {"classifier"}});
      break;
    case EncoderHead::kQuestionAnswering:
      table.head.push_back({"qa_outputs", {"classifier"}});
      break;
    default:
      table.head.push_back({"classifier", {"classifier"}});
  }
  return table;
}

} // namespace

ModelFamily bert_family() {
  ModelFamily family = encoder_family(
      {.model_type = "bert",
       .classes = "Bert",
       .config = bert_config,
       .names = bert_names});
  family.architectures.push_back(
      {"BertForPreTraining",
       make_encoder(bert_config, bert_names, EncoderHead::kPreTraining)});
  return family;
}

ModelFamily roberta_family() {
  return encoder_family(
      {.model_type = "roberta",
       .classes = "Roberta",
       .config = roberta_config,
       .names = roberta_names});
}

} // namespace tessera::zoo
