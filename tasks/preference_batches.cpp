// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/preference_batches.h"

#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/tasks/answer_inputs.h"
#include "tessera/tasks/reward_loss.h"

#include <torch/types.h>

#include <numeric>
#include <utility>

namespace tessera::tasks {

namespace {

/// Tokens of each pair.
std::vector<int64_t> pair_lengths(const std::vector<PreferencePair>& pairs) {
  std::vector<int64_t> lengths;
  for (const PreferencePair& pair : pairs) {
    lengths.push_back(static_cast<int64_t>(
        pair.chosen.tokens.size() + pair.rejected.tokens.size()));
  }
  return lengths;
}

} // namespace

PreferenceBatches::PreferenceBatches(
    std::vector<PreferencePair> pairs,
    const SupervisedInputs& inputs,
    uint64_t seed,
    PairKind kind)
    : RowBatches(
          sequences_of(pair_lengths(pairs), inputs, seed),
          {.measures_metric = !inputs.is_packed,
           .outputs_per_example = kPairOutputs,
           .has_equal_labels = !inputs.is_packed}),
      pairs_(std::move(pairs)),
      inputs_(inputs),
      kind_(kind) {}

std::string PreferenceBatches::text() const {
  const auto lengths = pair_lengths(pairs_);
  return formatted(
      "{} of {} tokens{}{}",
      runtime::count_text(static_cast<int64_t>(pairs_.size()), "pair"),
      std::accumulate(lengths.begin(), lengths.end(), int64_t{0}),
      !pairs_.empty() && pairs_.front().margin ? ", with margins" : "",
      packed_text(inputs_, size()));
}

zoo::ModelInput PreferenceBatches::rows(
    const std::vector<size_t>& numbers) const {
  RowTexts texts;
  std::vector<float> margins;
  for (const size_t number : numbers) {
    std::vector<const SupervisedText*> example;
    for (const size_t i : examples()[number]) {
      const PreferencePair& pair = pairs_[i];
      example.insert(example.end(), {&pair.chosen, &pair.rejected});
      if (pair.margin) {
        margins.push_back(static_cast<float>(*pair.margin));
      }
    }
    if (inputs_.is_packed) {
      texts.push_back(std::move(example));
    } else {
      for (const SupervisedText* text : example) {
        texts.push_back({text});
      }
    }
  }
  zoo::ModelInput batch = kind_ == PairKind::kAnswers
                              ? answer_rows(texts, inputs_)
                              : text_rows(texts, inputs_);
  if (!margins.empty()) {
    batch.others[kRewardMargins] = torch::tensor(margins);
  }
  return batch;
}

} // namespace tessera::tasks
