// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TextPredictor` predicts the labels of texts with a trained classifier, or
// with a language model that was trained to go on with prompts.

#include "tessera/tasks/class_values.h"
#include "tessera/tasks/trained_model.h"
#include "tessera/text/rows/text_rows.h"

#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <vector>

namespace tessera::tasks {

struct TextPair {
  std::string text; ///< or the prompt
  std::string second; ///< of a pair
};

class TextPredictor {
 public:
  virtual ~TextPredictor() = default;
  TextPredictor(const TextPredictor&) = delete;
  TextPredictor& operator=(const TextPredictor&) = delete;

  /// With TextClassificationColumns::prompt a prompt for a language model, else
  /// a classifier. Gives the model memory on the device.
  /// @param trained its TrainingConfig::max_length is that of texts, in tokens.
  /// @throws tessera::Error if the model is neither.
  static std::unique_ptr<TextPredictor> open(
      TrainedModel trained,
      c10::Device device);

  /// The probabilities of these, or these numbers, are predicted.
  const ClassLabels& labels() const {
    return labels_;
  }
  /// The keys of rows that text_of() reads.
  const std::vector<std::string>& keys() const {
    return keys_;
  }
  /// What is predicted of.
  /// @throws tessera::Error naming the row and a key that it lacks.
  virtual TextPair text_of(const text::TextRow& row) const = 0;

  /// See class_values().
  virtual std::vector<std::vector<double>> predict(
      const std::vector<TextPair>& texts) const = 0;

 protected:
  TextPredictor(ClassLabels labels, std::vector<std::string> keys)
      : labels_(std::move(labels)), keys_(std::move(keys)) {}

 private:
  ClassLabels labels_;
  std::vector<std::string> keys_;
};

} // namespace tessera::tasks
