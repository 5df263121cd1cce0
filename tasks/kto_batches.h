// SPDX-License-Identifier: Apache-2.0
#pragma once
// `KtoBatches` makes batches of good and bad answers for `KtoLoss`.

#include "tessera/tasks/kto_loss.h"
#include "tessera/tasks/preference_texts.h"
#include "tessera/tasks/row_batches.h"
#include "tessera/tasks/supervised_batches.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::tasks {

/// An example is an answer. Beside it goes a mismatched one, from which the
/// distance to the reference is estimated: its prompt with the answer of the
/// nearest example before it, the last before the first, that has another
/// prompt. Which one that is does not depend on batches.
class KtoBatches : public RowBatches<JudgedText> {
 public:
  /// @param inputs not packed; mismatched answers lose what is beyond
  ///   SupervisedInputs::max_length.
  /// @param options of the loss, which report() computes.
  /// @throws tessera::Error if all prompts are the same.
  KtoBatches(
      std::vector<JudgedText> texts,
      const SupervisedInputs& inputs,
      const PreferenceOptions& options);

  std::string text() const override;
  /// The loss with the distance over all examples; accuracy is the share of
  /// answers whose reward is on their side of beta times the distance.
  TaskScore report(const zoo::Score& score) const override;

  /// The prompt of an example with the answer of its counterpart.
  SupervisedText mismatched(size_t example) const;

 private:
  zoo::ModelInput rows(const std::vector<size_t>& numbers) const override;

  SupervisedInputs inputs_;
  PreferenceOptions options_;
  std::vector<size_t> others_; ///< whose answer is mismatched, by example
};

} // namespace tessera::tasks
