// SPDX-License-Identifier: Apache-2.0
#pragma once
// `KtoBatches` makes batches of good and bad answers for `KtoLoss`.

#include "tessera/tasks/kto_loss.h"
#include "tessera/tasks/preference_texts.h"
#include "tessera/tasks/supervised_batches.h"
#include "tessera/zoo/data/data_set.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::tasks {

/// An example is an answer. Beside it goes a mismatched one, from which the
/// distance to the reference is estimated: its prompt with the answer of the
/// nearest example before it, the last before the first, that has another
/// prompt. Which one that is does not depend on batches.
class KtoBatches : public zoo::DataSet {
 public:
  /// @param inputs not packed; mismatched answers lose what is beyond
  ///   SupervisedInputs::max_length.
  /// @param options of the loss, which report() computes.
  /// @throws tessera::Error if all prompts are the same.
  KtoBatches(
      std::vector<JudgedText> texts,
      const SupervisedInputs& inputs,
      const PreferenceOptions& options);

  size_t size() const override {
    return texts_.size();
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
    return kKtoOutputs;
  }
  /// The loss with the distance over all examples; accuracy is the share of
  /// answers whose reward is on their side of beta times the distance.
  TaskScore report(const zoo::Score& score) const override;
  bool has_equal_labels() const override {
    return true;
  }

  /// The prompt of an example with the answer of its counterpart.
  SupervisedText mismatched(size_t example) const;

 private:
  std::vector<JudgedText> texts_;
  SupervisedInputs inputs_;
  PreferenceOptions options_;
  std::vector<size_t> others_; ///< whose answer is mismatched, by example
};

} // namespace tessera::tasks
