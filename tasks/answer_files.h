// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AnswerFiles` writes predicted answers as the official scripts of SQuAD read
// them.

#include "tessera/tasks/question_predictor.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <string>

namespace tessera::tasks {

/// Empty: not written.
struct AnswerFileNames {
  std::filesystem::path predictions; ///< {id: answer}; "" for none
  /// {id: [{"text", "probability", "score"}, ...]}, "" for none
  std::filesystem::path n_best;
  /// {id: how much higher the score of none is}: evaluate-v2.0.py's
  /// --na-prob-file
  std::filesystem::path null_odds;

  bool empty() const {
    return predictions.empty() && n_best.empty() && null_odds.empty();
  }
};

class AnswerFiles {
 public:
  explicit AnswerFiles(AnswerFileNames names) : names_(std::move(names)) {}

  /// @throws tessera::Error on an id that another question has.
  void add(const PredictedQuestion& predicted);
  /// Blocks on the disk.
  void write() const;

 private:
  AnswerFileNames names_;
  std::map<std::string, std::string> places_; ///< of questions, by id
  nlohmann::json predictions_ = nlohmann::json::object();
  nlohmann::json n_best_ = nlohmann::json::object();
  nlohmann::json null_odds_ = nlohmann::json::object();
};

/// The answers of a prediction and, where questions may have none, that as one
/// with the text "", the most likely one first.
std::vector<PredictedAnswer> ranked_answers(const AnswerPrediction& prediction);

} // namespace tessera::tasks
