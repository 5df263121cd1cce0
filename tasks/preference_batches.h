// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PreferenceBatches` makes batches of pairs of answers for `PreferenceLoss`.

#include "tessera/tasks/pair_loss.h"
#include "tessera/tasks/preference_texts.h"
#include "tessera/tasks/supervised_batches.h"
#include "tessera/zoo/data/data_set.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::tasks {

/// The texts of P pairs, chosen and rejected by turns, have the numbers 0 to
/// 2 P - 1 in AnswerInputs. Each is a row, or, packed, a document in a row of
/// several whole pairs. Packed sequences are
/// the same in each epoch; an example is one of them. Not packed, an example is
/// a pair.
class PreferenceBatches : public zoo::DataSet {
 public:
  PreferenceBatches(
      std::vector<PreferencePair> pairs,
      const SupervisedInputs& inputs,
      uint64_t seed);

  size_t size() const override {
    return sequences_.size();
  }
  std::string text() const override;
  zoo::ModelInput make(
      const std::vector<size_t>& examples,
      int64_t epoch,
      bool loss_only) const override;
  /// Of pairs that are not packed.
  bool measures_metric() const override {
    return !inputs_.is_packed;
  }
  int64_t outputs_per_example() const override {
    return kPairOutputs;
  }
  TaskScore report(const zoo::Score& score) const override {
    return pair_report(score.outputs);
  }
  /// Of pairs that are not packed.
  bool has_equal_labels() const override {
    return !inputs_.is_packed;
  }

 private:
  std::vector<PreferencePair> pairs_;
  SupervisedInputs inputs_;
  std::vector<std::vector<size_t>> sequences_; ///< pairs of each
};

} // namespace tessera::tasks
