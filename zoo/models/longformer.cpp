// SPDX-License-Identifier: Apache-2.0
// Longformer (arXiv:2004.05150): RoBERTa with windows and global tokens.

#include "tessera/zoo/models/bert_like.h"
#include "tessera/zoo/models/families.h"

namespace tessera::zoo {

namespace {

/// How far a layer with this window attends to each side.
int64_t reach_of(const nlohmann::json& window, const ConfigFields& fields) {
  // The limit of ConfigFields::size().
  constexpr int64_t kMost = int64_t{1} << 28;
  TESSERA_CHECK(
      window.is_number_integer() && window.get<double>() <= kMost &&
          window.get<double>() >= 2 && window.get<int64_t>() % 2 == 0,
      "{}: attention_window contains {}; windows must be even and at least 2",
      fields.origin(),
      runtime::show_json(window));
  return window.get<int64_t>() / 2;
}

EncoderConfig longformer_config(const ConfigFields& fields) {
  EncoderConfig encoder = roberta_like_config(fields);
  // All heads use the layers' dropout.
  encoder.classifier_dropout = encoder.embedding_dropout;
  encoder.separator_id =
      fields.token({"sep_token_id"}, encoder.vocab, 2).value_or(2);
  const nlohmann::json window = fields.json_or("attention_window", 512);
  TESSERA_CHECK(
      !window.is_array() || window.size() == encoder.layers.size(),
      "{}: attention_window has {} windows, but 'num_hidden_layers' is {}",
      fields.origin(),
      window.size(),
      encoder.layers.size());
  for (size_t i = 0; i < encoder.layers.size(); ++i) {
    encoder.layers[i].reach =
        reach_of(window.is_array() ? window[i] : window, fields);
  }
  return encoder;
}

NameTable longformer_names(EncoderHead head) {
  NameTable table = roberta_like_names("longformer.", head);
  for (const char* const part : {"query", "key", "value"}) {
    table.base.push_back(
        {std::string("encoder.layer.*.attention.self.") + part + "_global",
         {std::string("layers.*.attention.global_") + part}});
  }
  return table;
}

} // namespace

ModelFamily longformer_family() {
  return encoder_family(
      {.model_type = "longformer",
       .classes = "Longformer",
       .config = longformer_config,
       .names = longformer_names});
}

} // namespace tessera::zoo
