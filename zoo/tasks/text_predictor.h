// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TextPredictor` predicts with a trained text classifier.

#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/models/model.h"
#include "tessera/zoo/tasks/text_batches.h"
#include "tessera/zoo/tokenizer/tokenizer.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

struct TextPair {
  std::string text;
  std::string second; ///< of a pair
};

class TextPredictor {
 public:
  /// Loads the whole classifier. @param folder a run folder of the task
  /// text_classification, or the Hugging Face folder of a sequence classifier.
  /// @param max_length of texts, in tokens; 0: that of the run, or the model's
  ///     positions.
  /// @throws tessera::Error if there is no trained classifier.
  TextPredictor(
      const std::filesystem::path& folder,
      int64_t max_length,
      c10::Device device);

  /// The keys that texts had in the run's data; "text" without a run.
  const std::vector<std::string>& text_keys() const {
    return text_keys_;
  }
  /// kClass, kClasses or kNumbers.
  HeadLabels labels() const {
    return labels_;
  }
  /// The names of the classes; empty if numbers are predicted.
  const std::vector<std::string>& classes() const {
    return classes_;
  }

  /// The probability of each class, or the numbers, of each text.
  /// @param are_pairs whether TextPair::second is used.
  std::vector<std::vector<double>> predict(
      const std::vector<TextPair>& texts,
      bool are_pairs) const;

 private:
  std::shared_ptr<Model> model_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<std::string> text_keys_;
  HeadLabels labels_ = HeadLabels::kOther;
  std::vector<std::string> classes_;
  EncodeOptions options_;
  TextInputs inputs_;
};

} // namespace tessera::zoo
