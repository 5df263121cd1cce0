// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/preference_batches.h"

#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/tasks/answer_inputs.h"

#include <array>
#include <utility>

namespace tessera::tasks {

namespace {

int64_t length_of(const PreferencePair& pair) {
  return static_cast<int64_t>(
      pair.chosen.tokens.size() + pair.rejected.tokens.size());
}

std::array<const SupervisedText*, 2> texts_of(const PreferencePair& pair) {
  return {&pair.chosen, &pair.rejected};
}

} // namespace

PreferenceBatches::PreferenceBatches(
    std::vector<PreferencePair> pairs,
    const SupervisedInputs& inputs,
    uint64_t seed)
    : pairs_(std::move(pairs)), inputs_(inputs) {
  std::vector<int64_t> lengths;
  for (const PreferencePair& pair : pairs_) {
    lengths.push_back(length_of(pair));
  }
  sequences_ = sequences_of(lengths, inputs_, seed);
}

std::string PreferenceBatches::text() const {
  int64_t tokens = 0;
  for (const PreferencePair& pair : pairs_) {
    tokens += length_of(pair);
  }
  return formatted(
      "{} of {} tokens{}",
      runtime::count_text(static_cast<int64_t>(pairs_.size()), "pair"),
      tokens,
      packed_text(inputs_, size()));
}

zoo::ModelInput PreferenceBatches::make(
    const std::vector<size_t>& examples,
    int64_t /*epoch*/,
    bool loss_only) const {
  zoo::ModelInput batch;
  if (!inputs_.is_packed) {
    std::vector<const SupervisedText*> texts;
    for (const size_t example : examples) {
      for (const SupervisedText* text : texts_of(pairs_[example])) {
        texts.push_back(text);
      }
    }
    batch = answer_rows(texts, inputs_);
    batch.loss_only = loss_only;
    return batch;
  }
  batch.loss_only = loss_only;
  DocumentRows rows(examples.size(), inputs_.max_length, inputs_);
  LearnedTokens learned;
  for (size_t row = 0; row < examples.size(); ++row) {
    for (const size_t pair : sequences_[examples[row]]) {
      for (const SupervisedText* text : texts_of(pairs_[pair])) {
        const int64_t begin = rows.add(row, text->tokens);
        learned.add(
            *text, static_cast<int64_t>(row) * inputs_.max_length + begin);
      }
    }
  }
  rows.store(batch);
  learned.store(batch.others);
  return batch;
}

} // namespace tessera::tasks
