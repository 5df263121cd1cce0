// SPDX-License-Identifier: Apache-2.0
#pragma once
// Configuration, names and construction that BERT and its successors share.

#include "tessera/zoo/models/encoder.h"
#include "tessera/zoo/models/registry.h"

#include <string>
#include <vector>

namespace tessera::zoo {

/// Reads the fields that they share.
/// @param padding_id, positions the defaults if config.json has none.
EncoderConfig bert_like_config(
    const ConfigFields& fields,
    int64_t padding_id,
    int64_t positions = 512);

/// The names of embeddings, layers and pooler; without heads.
NameTable bert_like_names(std::string prefix, EncoderHead head);

/// The names of BERT's masked LM head.
std::vector<NameRule> bert_like_prediction_names();

/// RoBERTa's differences from BERT: positions start after the padding token's
/// id, and classification has its own pooler.
EncoderConfig roberta_like_config(const ConfigFields& fields);

/// The names with heads.
NameTable roberta_like_names(std::string prefix, EncoderHead head);

using EncoderConfigOf = EncoderConfig (*)(const ConfigFields& fields);
using EncoderNamesOf = NameTable (*)(EncoderHead head);

/// How a family of encoders reads its configurations and names its weights.
struct EncoderFamily {
  std::string model_type;
  std::string classes; ///< prefix of transformers' classes: "Bert"
  EncoderConfigOf config;
  EncoderNamesOf names;
};

/// ...ForMaskedLM (the default), ...Model, ...ForSequenceClassification,
/// ...ForTokenClassification, ...ForQuestionAnswering and ...ForMultipleChoice.
ModelFamily encoder_family(const EncoderFamily& family);

MakeModel make_encoder(
    EncoderConfigOf config,
    EncoderNamesOf names,
    EncoderHead head);

} // namespace tessera::zoo
