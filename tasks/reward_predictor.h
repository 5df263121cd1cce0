// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RewardPredictor` gives answers to prompts the rewards of a trained model.

#include "tessera/tasks/supervised_batches.h"
#include "tessera/tasks/supervised_texts.h"
#include "tessera/tasks/trained_model.h"
#include "tessera/text/rows/text_rows.h"

#include <c10/core/Device.h>

#include <string>
#include <vector>

namespace tessera::tasks {

class RewardPredictor {
 public:
  /// Gives the model memory on the device.
  /// @param trained of the task reward; its TrainingConfig::max_length is that
  ///   of a prompt with its answer, in tokens.
  RewardPredictor(TrainedModel trained, c10::Device device);

  /// Those of a prompt and its answer.
  const std::vector<std::string>& keys() const {
    return keys_;
  }
  /// A prompt with its answer, or a conversation ("messages"), as the data of
  /// training have them. Without a prompt, a whole text.
  /// @throws tessera::Error naming the row and what is missing or wrong.
  SupervisedText text_of(const text::TextRow& row) const;

  /// A reward for each.
  /// @throws tessera::Error if any is not finite.
  std::vector<double> predict(const std::vector<SupervisedText>& texts) const;

 private:
  TrainedModel trained_;
  SupervisedInputs inputs_;
  std::vector<std::string> keys_;
  SupervisedEncoder encoder_;
  c10::Device device_;
};

} // namespace tessera::tasks
