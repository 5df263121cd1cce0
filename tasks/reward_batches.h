// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RewardBatches` makes batches of pairs of texts for `RewardLoss`.

#include "tessera/tasks/pair_loss.h"
#include "tessera/tasks/preference_texts.h"
#include "tessera/tasks/supervised_batches.h"
#include "tessera/zoo/data/data_set.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::tasks {

/// A batch whose rows are texts, padded to the longest of them.
zoo::ModelInput text_rows(
    const std::vector<const SupervisedText*>& texts,
    const SupervisedInputs& inputs);

/// An example is a pair: two rows, the chosen text and the rejected one.
class RewardBatches : public zoo::DataSet {
 public:
  /// @param inputs not packed.
  RewardBatches(
      std::vector<PreferencePair> pairs,
      const SupervisedInputs& inputs)
      : pairs_(std::move(pairs)), inputs_(inputs) {}

  size_t size() const override {
    return pairs_.size();
  }
  std::string text() const override;
  zoo::ModelInput make(
      const std::vector<size_t>& examples,
      int64_t epoch,
      bool loss_only) const override;
  bool measures_metric() const override {
    return true;
  }
  int64_t outputs_per_example() const override {
    return kPairOutputs;
  }
  TaskScore report(const zoo::Score& score) const override {
    return pair_report(score.outputs);
  }
  bool has_equal_labels() const override {
    return true;
  }

 private:
  std::vector<PreferencePair> pairs_;
  SupervisedInputs inputs_;
};

} // namespace tessera::tasks
