// SPDX-License-Identifier: Apache-2.0
#pragma once
// What BERT and those who followed it have in common.

#include "tessera/zoo/models/encoder.h"
#include "tessera/zoo/models/registry.h"

#include <string>

namespace tessera::zoo {

/// Fields that all of them have.
/// @param padding_id where config.json has none.
EncoderConfig bert_like_config(const ConfigFields& fields, int64_t padding_id);

/// Embeddings, layers and pooler; without heads.
NameTable bert_like_names(std::string prefix, EncoderHead head);

/// What RoBERTa changed: positions count from the padding token on, and classes
/// have a pooler of their own.
EncoderConfig roberta_like_config(const ConfigFields& fields);

/// With heads.
NameTable roberta_like_names(std::string prefix, EncoderHead head);

using EncoderConfigOf = EncoderConfig (*)(const ConfigFields& fields);
using EncoderNamesOf = NameTable (*)(EncoderHead head);

/// How a family of encoders reads its configurations and names its weights.
struct EncoderFamily {
  std::string model_type;
  std::string classes; ///< what transformers' classes begin with: "Bert"
  EncoderConfigOf config;
  EncoderNamesOf names;
};

/// ...ForMaskedLM (made where config.json names none), ...Model,
/// ...ForSequenceClassification, ...ForTokenClassification,
/// ...ForQuestionAnswering and ...ForMultipleChoice.
ModelFamily encoder_family(const EncoderFamily& family);

MakeModel make_encoder(
    EncoderConfigOf config,
    EncoderNamesOf names,
    EncoderHead head);

} // namespace tessera::zoo
