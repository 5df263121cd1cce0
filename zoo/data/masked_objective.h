// SPDX-License-Identifier: Apache-2.0
#pragma once
// `MaskedObjective` masks tokens of packed texts, which the model predicts
// (BERT, arXiv:1810.04805; RoBERTa, arXiv:1907.11692).

#include "tessera/zoo/data/objective.h"

namespace tessera::zoo {

/// Each sequence is [CLS] text [SEP], and of a head that takes pairs [CLS]
/// first [SEP] second [SEP] with token types and next_sentence_label: 1 if the
/// second is of another text, or was before the first. Words, or tokens, are
/// chosen each with the given probability; see mask_tokens().
class MaskedObjective : public Objective {
 public:
  /// @throws tessera::Error as make_objective().
  MaskedObjective(
      const ObjectiveOptions& options,
      const std::optional<text::Tokenizer>& tokenizer,
      const Head& head,
      const ObjectiveSetting& setting);

  int64_t text_tokens() const override {
    return length_ - (is_pair_ ? 3 : 2);
  }
  int64_t positions() const override {
    return length_;
  }
  ModelInput make(
      const PackedSamples& texts,
      const std::vector<size_t>& examples,
      int64_t epoch) const override;
  bool has_token_loss() const override {
    return !is_pair_;
  }

 private:
  struct Row;
  void fill(Row& row, const PackedSamples& texts, size_t example, int64_t epoch)
      const;

  MaskedTextOptions options_;
  std::optional<WordTable> words_;
  std::vector<bool> is_special_; ///< of the vocabulary
  int64_t vocab_;
  int64_t length_;
  uint64_t seed_;
  bool is_pair_;
  bool has_types_;
  int64_t start_;
  int64_t end_;
};

} // namespace tessera::zoo
