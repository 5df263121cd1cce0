// SPDX-License-Identifier: Apache-2.0
#pragma once
// `QuestionBatches` makes batches of questions with windows of their contexts,
// and selects answers from what a model says of all windows of a question.

#include "tessera/tasks/question_answering_data.h"
#include "tessera/tasks/row_batches.h"
#include "tessera/tasks/text_batches.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::tasks {

/// A part of a question's window as an answer.
struct FoundAnswer {
  size_t window = 0; ///< of those of the question
  int64_t first = 0; ///< token of EncodedQuestion::encoding()
  int64_t last = 0;
  double score = 0; ///< logit of the start + logit of the end
};

/// The answers of a question.
struct QuestionAnswers {
  std::vector<FoundAnswer> best; ///< the best one first
  /// Of the first token as start and end, the least over all windows.
  double no_answer_score = 0;
};

/// The highest logits of starts and ends of windows, as answers_of() takes
/// them: [rows, 1 + 4 * best_places], float64.
/// @param start [rows, length]. @param mask 0: the token is padding.
at::Tensor best_places_of(
    const at::Tensor& start,
    const at::Tensor& end,
    const at::Tensor& mask,
    int64_t best_places);

/// Selects from all pairs of a likely start and end in the same window.
/// @param best best_places_of() the question's windows, a row each.
QuestionAnswers answers_of(
    const EncodedQuestion& question,
    const double* best,
    const QuestionOptions& options);

/// An answer as it stands in the context.
struct PredictedAnswer {
  std::string text; ///< not empty
  text::ByteRange bytes; ///< of the context
  double score = 0; ///< FoundAnswer::score
  /// Among these answers, and none if questions may have none: the softmax of
  /// their scores.
  double probability = 0;
};

/// What a model says of a question.
struct AnswerPrediction {
  /// The best one first, each part of the context once. It may be empty.
  std::vector<PredictedAnswer> best;
  double no_answer_score = 0; ///< see QuestionAnswers
  double no_answer_probability = 0; ///< 0 if every question has an answer
  /// Whether the best one is the answer; otherwise there is none.
  bool is_answered = false;

  /// How much higher the score of no answer is than that of the best one.
  double no_answer_margin() const;
  /// The answer; empty: there is none.
  std::string answer() const {
    return is_answered ? best.front().text : "";
  }
};

/// A window of a question.
struct QuestionWindow {
  size_t question;
  size_t number; ///< of the question's windows
  int64_t first; ///< token of the answer; 0: the window has none
  int64_t last;
};

class QuestionBatches : public RowBatches<QuestionWindow> {
 public:
  /// @throws Error as encode_question(), unless bad rows are skipped.
  QuestionBatches(
      std::vector<AnsweredQuestion> questions,
      const text::Tokenizer& tokenizer,
      int64_t max_length,
      const QuestionOptions& options,
      const TextInputs& inputs);

  std::string text() const override;
  at::Tensor outputs_of(
      const zoo::ModelInput& input,
      const zoo::ModelOutput& output) const override;
  TaskScore report(const zoo::Score& score) const override;

  /// @param outputs of Score.
  /// @return one for each of questions().
  std::vector<AnswerPrediction> predictions(const at::Tensor& outputs) const;
  /// The answers of predictions().
  std::vector<std::string> answers(const at::Tensor& outputs) const;
  const std::vector<AnsweredQuestion>& questions() const {
    return questions_;
  }
  const std::vector<EncodedQuestion>& encoded() const {
    return encoded_;
  }

 private:
  zoo::ModelInput rows(const std::vector<size_t>& numbers) const override;
  AnswerPrediction prediction(
      const AnsweredQuestion& question,
      const EncodedQuestion& encoded,
      const QuestionAnswers& found) const;

  std::vector<AnsweredQuestion> questions_;
  std::vector<EncodedQuestion> encoded_; ///< of questions_
  QuestionOptions options_;
  TextInputs inputs_;
};

} // namespace tessera::tasks
