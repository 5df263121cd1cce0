// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SupervisedBatches` makes batches of rows of which a model learns to write a
// part.

#include "tessera/tasks/generated_metrics.h"
#include "tessera/tasks/row_batches.h"
#include "tessera/tasks/supervised_texts.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

class Model;

} // namespace tessera::zoo

namespace tessera::tasks {

struct TrainingConfig;

/// How rows become the inputs of a model.
struct SupervisedInputs {
  PromptKind kind = PromptKind::kDecoder;
  /// Several rows in a sequence, as separate documents; otherwise each row is
  /// padded to the longest of its batch.
  bool is_packed = false;
  int64_t max_length = 0; ///< of packed sequences
  int64_t multiple_of = 1; ///< that the length of others is
  int64_t padding_token = 0;
};

/// Whether rows share sequences: as `data.packed` says, by default if the model
/// can keep them apart.
bool packs_rows(const TrainingConfig& config, const zoo::Model& model);

/// What is generated and measured when rows are scored.
struct SupervisedScoring {
  std::vector<GeneratedMetric> metrics; ///< empty: nothing is generated
  text::RougeWords compared = text::RougeWords::kWhole;
  int64_t rows = 0; ///< the first ones
  zoo::GenerateOptions options;
};

/// Rows of at most `length` tokens as sequences: the longest first, each in the
/// fullest sequence that has room for it. Rows of equal length are in an order
/// that the seed decides.
/// @return the numbers of the rows of each sequence.
std::vector<std::vector<size_t>> packed_rows(
    const std::vector<int64_t>& lengths,
    int64_t length,
    uint64_t seed);

/// The rows of each sequence: those of packed_rows(), or one each.
std::vector<std::vector<size_t>> sequences_of(
    const std::vector<int64_t>& lengths,
    const SupervisedInputs& inputs,
    uint64_t seed);

/// ", in 3 sequences of 1024 tokens"; empty if rows are not packed.
std::string packed_text(const SupervisedInputs& inputs, size_t sequences);

/// The texts of each row of a batch: one, or, packed, several.
using RowTexts = std::vector<std::vector<const SupervisedText*>>;

/// A batch of texts, one behind the other in their row: tokens, and what keeps
/// apart the texts of a packed row, or masks the padding of others.
zoo::ModelInput text_rows(
    const RowTexts& texts,
    const SupervisedInputs& inputs);

/// Calls `visit` with each text, the number of its row, and where it begins in
/// that.
template <typename Visit>
void for_each_text(const RowTexts& texts, Visit visit) {
  for (size_t row = 0; row < texts.size(); ++row) {
    int64_t begin = 0;
    for (const SupervisedText* text : texts[row]) {
      visit(*text, row, begin);
      begin += static_cast<int64_t>(text->tokens.size());
    }
  }
}

/// Packed sequences are the same in each epoch. They have document_ids and
/// position_ids that begin anew in each row, labels -100 but for what is
/// learned, and padding that is a document of its own.
/// An example is the numbers of its rows.
class SupervisedBatches : public RowBatches<std::vector<size_t>> {
 public:
  SupervisedBatches(
      std::vector<SupervisedText> texts,
      const SupervisedInputs& inputs,
      SupervisedScoring scoring,
      text::Tokenizer tokenizer,
      uint64_t seed);

  std::string text() const override;
  const zoo::ScoredPrompts* prompts() const override {
    return prompts_ ? &*prompts_ : nullptr;
  }
  TaskScore report(const zoo::Score& score) const override;

 private:
  zoo::ModelInput rows(const std::vector<size_t>& numbers) const override;

  std::vector<SupervisedText> texts_;
  SupervisedInputs inputs_;
  SupervisedScoring scoring_;
  text::Tokenizer tokenizer_;
  std::optional<zoo::ScoredPrompts> prompts_;
};

} // namespace tessera::tasks
