// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SupervisedBatches` makes batches of rows of which a model learns to write a
// part.

#include "tessera/tasks/generated_metrics.h"
#include "tessera/tasks/supervised_texts.h"
#include "tessera/zoo/data/data_set.h"

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
  bool has_mask = true; ///< padding is masked
};

/// Whether attention is divided as a ring, which has no masks.
bool has_ring_attention(const TrainingConfig& config);

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

/// The inputs of a batch that is filled with documents: tokens, and what keeps
/// apart the documents of a sequence, or masks its padding.
class DocumentRows {
 public:
  DocumentRows(size_t rows, int64_t length, const SupervisedInputs& inputs);

  /// Appends a document to a row.
  /// @return where it begins in that row.
  int64_t add(size_t row, const std::vector<int64_t>& tokens);
  /// Adds the inputs to `batch`; the last call.
  void store(zoo::ModelInput& batch);

 private:
  /// What follows in the row, up to `end`, is a document.
  void number(size_t row, int64_t end);

  const SupervisedInputs& inputs_;
  at::Tensor ids_;
  at::Tensor documents_, positions_; ///< undefined if rows are not packed
  std::vector<int64_t> ends_; ///< of each row
  std::vector<int64_t> counts_; ///< the documents of each row
};

/// Packed sequences are the same in each epoch. They have document_ids and
/// position_ids that begin anew in each row, labels -100 but for what is
/// learned, and padding that is a document of its own.
class SupervisedBatches : public zoo::DataSet {
 public:
  SupervisedBatches(
      std::vector<SupervisedText> texts,
      const SupervisedInputs& inputs,
      SupervisedScoring scoring,
      text::Tokenizer tokenizer,
      uint64_t seed);

  size_t size() const override {
    return sequences_.size();
  }
  std::string text() const override;
  zoo::ModelInput make(
      const std::vector<size_t>& examples,
      int64_t epoch,
      bool loss_only) const override;
  bool measures_metric() const override {
    return false;
  }
  const zoo::ScoredPrompts* prompts() const override {
    return prompts_ ? &*prompts_ : nullptr;
  }
  TaskScore report(const zoo::Score& score) const override;

  /// The rows of an example.
  const std::vector<size_t>& rows(size_t example) const {
    return sequences_[example];
  }

 private:
  std::vector<SupervisedText> texts_;
  SupervisedInputs inputs_;
  SupervisedScoring scoring_;
  text::Tokenizer tokenizer_;
  std::vector<std::vector<size_t>> sequences_; ///< rows of each
  std::optional<zoo::ScoredPrompts> prompts_;
};

} // namespace tessera::tasks
