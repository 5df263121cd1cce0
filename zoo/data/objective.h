// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Objective` makes what a model is pretrained on of packed texts;
// `ObjectiveBatches` is these as a data set.

#include "tessera/zoo/data/data_set.h"
#include "tessera/zoo/data/packed_samples.h"
#include "tessera/zoo/data/special_tokens.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/inputs/objective_options.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

/// Batches of an objective have the same shape each time. All random choices
/// are a function of seed, epoch and example.
class Objective {
 public:
  virtual ~Objective() = default;

  /// The number of tokens of the text of an example.
  virtual int64_t text_tokens() const = 0;
  /// The number of positions that the model has to have.
  virtual int64_t positions() const = 0;
  /// @param texts of text_tokens() each.
  virtual ModelInput make(
      const PackedSamples& texts,
      const std::vector<size_t>& examples,
      int64_t epoch) const = 0;
  /// Whether the loss is the mean over the tokens that are predicted.
  virtual bool has_token_loss() const {
    return true;
  }
};

/// What an objective is made for.
struct ObjectiveSetting {
  int64_t max_length = 0; ///< of the model's sequences
  /// Of second texts, whose length is a multiple of this; max_length is.
  int64_t sequence_multiple = 1;
  uint64_t seed = 0;
  std::filesystem::path model_folder; ///< see objective_tokenizer()
};

/// The objective that `options` name, or else the first of the head.
ObjectiveKind objective_of(
    const ObjectiveOptions& options,
    const Head& head,
    const std::string& architecture);

/// Other objectives than the next token.
/// @throws tessera::Error naming the key, the value and the remedy if a token
///     is missing, or if a text has no room in a sequence.
std::unique_ptr<const Objective> make_objective(
    ObjectiveKind kind,
    const ObjectiveOptions& options,
    const Head& head,
    const ObjectiveSetting& setting);

class ObjectiveBatches : public DataSet {
 public:
  ObjectiveBatches(
      std::shared_ptr<const Objective> objective,
      PackedSamples texts)
      : objective_(std::move(objective)), texts_(std::move(texts)) {}

  size_t size() const override {
    return texts_.size();
  }
  std::string text() const override {
    return texts_.text();
  }
  ModelInput make(
      const std::vector<size_t>& examples,
      int64_t epoch,
      bool loss_only) const override;
  int64_t left_out_tokens() const override {
    return texts_.left_out_tokens();
  }
  bool measures_metric() const override {
    return false;
  }
  TaskScore report(const Score& score) const override;

 private:
  std::shared_ptr<const Objective> objective_;
  PackedSamples texts_;
};

} // namespace tessera::zoo
