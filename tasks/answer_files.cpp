// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/answer_files.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"

#include <algorithm>
#include <limits>

namespace tessera::tasks {

std::vector<PredictedAnswer> ranked_answers(
    const AnswerPrediction& prediction) {
  std::vector<PredictedAnswer> all = prediction.best;
  if (prediction.no_answer_probability > 0) {
    const auto after =
        std::find_if(all.begin(), all.end(), [&](const PredictedAnswer& one) {
          return one.score < prediction.no_answer_score;
        });
    all.insert(
        after,
        PredictedAnswer{
            "",
            {},
            prediction.no_answer_score,
            prediction.no_answer_probability});
  }
  return all;
}

void AnswerFiles::add(const PredictedQuestion& predicted) {
  if (names_.empty()) {
    return;
  }
  const AnsweredQuestion& question = predicted.question;
  const auto [other, is_new] = places_.emplace(question.id, question.place);
  TESSERA_CHECK(
      is_new,
      "{}: {} has the same id, '{}', and files of answers are by id; give each question another one, or name their key in data.id_key",
      question.place,
      other->second,
      question.id);
  const AnswerPrediction& prediction = predicted.prediction;
  if (!names_.predictions.empty()) {
    predictions_[question.id] = prediction.answer();
  }
  if (!names_.n_best.empty()) {
    auto& all = n_best_[question.id] = nlohmann::json::array();
    for (const PredictedAnswer& one : ranked_answers(prediction)) {
      all.push_back(nlohmann::json{
          {"text", one.text},
          {"probability", one.probability},
          {"score", one.score}});
    }
  }
  if (!names_.null_odds.empty()) {
    // JSON has no infinity.
    null_odds_[question.id] = std::min(
        prediction.no_answer_margin(), std::numeric_limits<double>::max());
  }
}

void AnswerFiles::write() const {
  const auto write_one = [](const std::filesystem::path& path,
                            const nlohmann::json& json) {
    if (!path.empty()) {
      runtime::write_file_atomically(
          path,
          json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) +
              "\n");
    }
  };
  write_one(names_.predictions, predictions_);
  write_one(names_.n_best, n_best_);
  write_one(names_.null_odds, null_odds_);
}

} // namespace tessera::tasks
