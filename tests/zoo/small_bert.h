// SPDX-License-Identifier: Apache-2.0
#pragma once
// A BERT classifier with fresh weights, small enough to be trained in a test.

#include "tessera/zoo/models/registry.h"

#include <nlohmann/json.hpp>

#include <memory>

namespace tessera::tests {

/// config.json of a BERT; dropout is 0.1 where `changes` do not say otherwise.
inline nlohmann::json small_bert_config(
    const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json config{
      {"model_type", "bert"},
      {"vocab_size", 61},
      {"hidden_size", 30},
      {"num_hidden_layers", 3},
      {"num_attention_heads", 3},
      {"intermediate_size", 37},
      {"max_position_embeddings", 23},
      {"pad_token_id", 2},
      {"id2label", {{"0", "LABEL_0"}, {"1", "LABEL_1"}}},
      {"problem_type", "single_label_classification"}};
  config.update(changes);
  return config;
}

inline std::shared_ptr<zoo::Model> small_bert(
    const nlohmann::json& changes = nlohmann::json::object()) {
  return zoo::from_config(
      small_bert_config(changes),
      {.architecture = "BertForSequenceClassification"});
}

} // namespace tessera::tests
