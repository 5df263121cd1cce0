// SPDX-License-Identifier: Apache-2.0
#pragma once
// The numbers that make a BERT, as config.json of a Hugging Face folder has
// them.

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// "LABEL_0" ...: the names that Hugging Face gives to nameless classes.
std::vector<std::string> default_bert_labels(std::int64_t count);

/// Fields are named as in config.json; the defaults are those of BERT-Base.
struct BertConfig {
  std::int64_t vocab_size = 30522;
  std::int64_t hidden_size = 768;
  std::int64_t num_hidden_layers = 12;
  std::int64_t num_attention_heads = 12;
  std::int64_t intermediate_size = 3072;
  /// "gelu", "gelu_new" (the tanh approximation) or "relu".
  std::string hidden_act = "gelu";
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  /// Dropout before the classifier; hidden_dropout_prob when unset.
  std::optional<double> classifier_dropout;
  std::int64_t max_position_embeddings = 512;
  std::int64_t type_vocab_size = 2;
  /// Standard deviation of fresh weights.
  double initializer_range = 0.02;
  double layer_norm_eps = 1e-12;
  std::int64_t pad_token_id = 0;
  /// The names of the classes, in the order of their ids (id2label).
  std::vector<std::string> labels = {"LABEL_0", "LABEL_1"};

  std::int64_t num_labels() const {
    return static_cast<std::int64_t>(labels.size());
  }

  /// Reads <folder>/config.json. Keys that mean nothing here are ignored.
  /// @throws Error when the file is missing or malformed, describes another
  /// architecture or a variant that is not implemented, or fails validate().
  static BertConfig from_folder(const std::filesystem::path& folder);

  /// @throws Error naming the first field that makes no BERT.
  void validate() const;

  /// The config.json of a BertForSequenceClassification.
  nlohmann::json to_json() const;
};

} // namespace tessera
