// SPDX-License-Identifier: Apache-2.0
#pragma once
// Heads that predict one thing for each example: classes, numbers, a choice, or
// an answer.

#include "tessera/zoo/heads/classification.h"
#include "tessera/zoo/heads/standard_head.h"

namespace tessera::zoo {

/// A class for each example, several, or numbers, of texts or images.
class ClassHead : public StandardHead {
 public:
  ClassHead(HeadInputs inputs, const ClassifierOptions& options);

  HeadLabels labels() const override {
    return labels_;
  }
  int64_t classes() const override {
    return labels_ == HeadLabels::kNumbers ? 0 : classes_;
  }
  void complete(NamedTensors& batch) const override;
  LossCounts loss_counts(const ModelInput& batch) const override;
  bool has_equal_counts(const ColumnChecks& examples) const override;
  Metric metric() const override;
  void add_score(const ScoredBatch& batch, ScoreSums& sums) const override;

 protected:
  std::vector<std::string> targets() const override {
    return {"labels"};
  }
  void check_labels(const ColumnChecks& examples) const override;
  bool labels_may_be_floats() const override {
    return true;
  }

 private:
  HeadLabels labels_;
  int64_t classes_;
  /// A class may be given by the chances of all.
  bool takes_chances_;
};

/// Which of several choices, each a text.
class ChoiceHead : public ClassHead {
 public:
  explicit ChoiceHead(HeadInputs inputs) : ClassHead(std::move(inputs), {}) {}

  HeadLabels labels() const override {
    return HeadLabels::kOther;
  }
  /// Examples differ in their number of choices.
  int64_t classes() const override {
    return 0;
  }

 protected:
  void check_labels(const ColumnChecks& examples) const override;
  bool labels_may_be_floats() const override {
    return false;
  }
  bool has_choices() const override {
    return true;
  }
};

/// The start and the end of an answer in a text; those outside of it do not
/// count.
class AnswerHead : public StandardHead {
 public:
  using StandardHead::StandardHead;

  bool finds_answers() const override {
    return true;
  }
  bool has_labels(const NamedTensors& batch) const override;
  LossCounts loss_counts(const ModelInput& batch) const override;
  bool has_equal_counts(const ColumnChecks& /*examples*/) const override {
    return false;
  }
  Metric metric() const override {
    return {"exact match", "answers"};
  }
  void add_score(const ScoredBatch& batch, ScoreSums& sums) const override;

 protected:
  std::vector<std::string> targets() const override {
    return {"start_positions", "end_positions"};
  }
  void check_labels(const ColumnChecks& examples) const override;
};

} // namespace tessera::zoo
