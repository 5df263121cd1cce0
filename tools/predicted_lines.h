// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ClassLines` and `AnswerLines` write predictions as lines for people, or as
// JSON for programs.

#include "tessera/tasks/class_values.h"
#include "tessera/tasks/question_predictor.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace tessera::tools {

struct LineOptions {
  size_t top = 1; ///< the most likely ones in lines for people
  bool as_json = false;
};

/// "games 97.3 %<tab>a game of cards", or the probabilities of all classes.
class ClassLines {
 public:
  /// @param labels outlives this.
  ClassLines(const tasks::ClassLabels& labels, const LineOptions& options)
      : labels_(labels), options_(options) {}

  /// @param of what is predicted of; its values are shown.
  std::string line(
      const nlohmann::ordered_json& of,
      const std::vector<double>& values) const;

 private:
  void add_json(nlohmann::ordered_json& json, const std::vector<double>& values)
      const;
  std::string text(const std::vector<double>& values) const;

  const tasks::ClassLabels& labels_;
  LineOptions options_;
};

/// "in Rome 97.3 %<tab>Where?", or all answers with their places.
class AnswerLines {
 public:
  explicit AnswerLines(const LineOptions& options) : options_(options) {}

  std::string line(const tasks::PredictedQuestion& predicted) const;

 private:
  LineOptions options_;
};

} // namespace tessera::tools
