// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PreferenceBatches` makes batches of pairs of answers for `PreferenceLoss`
// and `RewardLoss`.

#include "tessera/tasks/pair_loss.h"
#include "tessera/tasks/preference_texts.h"
#include "tessera/tasks/row_batches.h"
#include "tessera/tasks/supervised_batches.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::tasks {

/// What a loss compares.
enum class PairKind {
  kAnswers, ///< with AnswerInputs
  kTexts,
};

/// The texts of P pairs, chosen and rejected by turns, have the numbers 0 to
/// 2 P - 1 in AnswerInputs. Each is a row, or, packed, a document in a row of
/// several whole pairs. An example is the numbers of its pairs, of which it has
/// one if they are not packed. Only then are all labels equal, and a metric is
/// measured.
class PreferenceBatches : public RowBatches<std::vector<size_t>> {
 public:
  /// @param seed of the order in which pairs are packed.
  PreferenceBatches(
      std::vector<PreferencePair> pairs,
      const SupervisedInputs& inputs,
      uint64_t seed = 0,
      PairKind kind = PairKind::kAnswers);

  std::string text() const override;
  TaskScore report(const zoo::Score& score) const override {
    return pair_report(score.outputs);
  }

 private:
  zoo::ModelInput rows(const std::vector<size_t>& numbers) const override;

  std::vector<PreferencePair> pairs_;
  SupervisedInputs inputs_;
  PairKind kind_;
};

} // namespace tessera::tasks
