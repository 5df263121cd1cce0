// SPDX-License-Identifier: Apache-2.0
// BERT (arXiv:1810.04805) and RoBERTa (arXiv:1907.11692).

#include "tessera/zoo/models/bert_like.h"
#include "tessera/zoo/models/families.h"

namespace tessera::zoo {

namespace {

EncoderConfig bert_config(const ConfigFields& fields) {
  return bert_like_config(fields, /*padding_id=*/0);
}

NameTable bert_names(EncoderHead head) {
  NameTable table = bert_like_names("bert.", head);
  table.head = bert_like_prediction_names();
  table.head.push_back({"cls.seq_relationship", {"next_sentence"}});
  table.head.push_back(
      {head == EncoderHead::kQuestionAnswering ? "qa_outputs" : "classifier",
       {"classifier"}});
  return table;
}

NameTable roberta_names(EncoderHead head) {
  return roberta_like_names("roberta.", head);
}

} // namespace

ModelFamily bert_family() {
  ModelFamily family = encoder_family(
      {.model_type = "bert",
       .classes = "Bert",
       .config = bert_config,
       .names = bert_names});
  for (const auto& [name, head] :
       {std::pair("BertForPreTraining", EncoderHead::kPreTraining),
        std::pair(
            "BertForNextSentencePrediction", EncoderHead::kNextSentence)}) {
    family.architectures.push_back(
        {name, make_encoder(bert_config, bert_names, head)});
  }
  return family;
}

ModelFamily roberta_family() {
  return encoder_family(
      {.model_type = "roberta",
       .classes = "Roberta",
       .config = roberta_like_config,
       .names = roberta_names});
}

} // namespace tessera::zoo
