// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AnswerInputs` are the tokens of answers in a batch, and
// answer_log_probabilities() what a language model makes of them.

#include "tessera/tasks/frozen_model.h"
#include "tessera/tasks/supervised_batches.h"
#include "tessera/zoo/inputs/model_input.h"
#include "tessera/zoo/models/model.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera::tasks {

/// [Note: tokens of answers] A batch has N texts, each with an answer. Each
/// text is a row, or, packed, a document in a row. For T learned tokens,
/// ModelInput::others has
///
/// - kPlaces [T] int64: the position, counted over all rows, whose logits
///   predict the token,
/// - kTokens [T] int64: the token,
/// - kSlots [T] int64: its place in kTable,
/// - kTable [N, most learned tokens of a text] float32: zeros,
/// - kLengths [N] int64: learned tokens of each text.
struct AnswerInputs {
  static constexpr const char* kPlaces = "answer_places";
  static constexpr const char* kTokens = "answer_tokens";
  static constexpr const char* kSlots = "answer_slots";
  static constexpr const char* kTable = "answer_table";
  static constexpr const char* kLengths = "answer_lengths";
};

/// text_rows() with AnswerInputs.
zoo::ModelInput answer_rows(
    const RowTexts& texts,
    const SupervisedInputs& inputs);

/// The batch as a model takes it, without AnswerInputs.
zoo::ModelInput without_answers(const zoo::ModelInput& batch);

/// The log-probabilities of the answers' tokens, summed: [N] float32.
/// @param logits [rows, length, vocabulary]
at::Tensor answer_log_probabilities(
    const at::Tensor& logits,
    const zoo::ModelInput& batch);

/// `AnswerReference` is what the likelihood of answers is compared with: the
/// base of the trained model's adapter, another model, or nothing.
class AnswerReference {
 public:
  /// @param is_used false: there is none.
  /// @param other null: the base of the adapter.
  AnswerReference(bool is_used, std::unique_ptr<FrozenModel> other)
      : is_used_(is_used), other_(std::move(other)) {}

  /// As answer_log_probabilities(), without gradient; undefined if there is
  /// none. Collective.
  at::Tensor log_probabilities(zoo::Model& model, const zoo::ModelInput& batch);
  const FrozenModel* frozen() const {
    return other_.get();
  }

 private:
  bool is_used_;
  std::unique_ptr<FrozenModel> other_;
};

} // namespace tessera::tasks
