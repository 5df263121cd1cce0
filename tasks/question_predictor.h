// SPDX-License-Identifier: Apache-2.0
#pragma once
// `QuestionPredictor` answers questions about contexts with a trained model.

#include "tessera/tasks/question_batches.h"
#include "tessera/tasks/trained_model.h"
#include "tessera/text/tokenizer/tokenizer.h"

#include <c10/core/Device.h>

#include <vector>

namespace tessera::tasks {

/// A question and what is predicted of it.
struct PredictedQuestion {
  AnsweredQuestion question;
  AnswerPrediction prediction;
};

class QuestionPredictor {
 public:
  /// Gives the model memory on the device.
  /// @throws tessera::Error if it has no head that finds answers.
  QuestionPredictor(TrainedModel trained, c10::Device device);

  /// Those of the configuration, for questions without answers.
  const QuestionOptions& options() const {
    return trained_.config.as<QuestionOptions>();
  }

  /// As questions are scored: over all windows of a context.
  /// @param batch_size of windows.
  /// @throws tessera::Error as encode_question(), unless bad rows are skipped;
  ///     they are then left out.
  std::vector<PredictedQuestion> predict(
      std::vector<AnsweredQuestion> questions,
      int64_t batch_size) const;

 private:
  TrainedModel trained_;
  text::Tokenizer tokenizer_;
  TextInputs inputs_;
};

} // namespace tessera::tasks
