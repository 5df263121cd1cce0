// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/preference_batches.h"

#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/round_up.h"
#include "tessera/runtime/core/size_text.h"

#include <torch/types.h>

#include <algorithm>
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

/// The learned tokens of a batch, text by text.
class LearnedTokens {
 public:
  /// @param begin where the text begins, counted over all rows.
  void add(const SupervisedText& text, int64_t begin) {
    int64_t count = 0;
    for (const TokenRange& range : text.answers) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        places_.push_back(begin + i - 1);
        tokens_.push_back(text.tokens[static_cast<size_t>(i)]);
        ++count;
      }
    }
    lengths_.push_back(count);
  }

  void store(zoo::NamedTensors& inputs) const {
    const int64_t most = *std::max_element(lengths_.begin(), lengths_.end());
    std::vector<int64_t> slots;
    for (size_t text = 0; text < lengths_.size(); ++text) {
      for (int64_t i = 0; i < lengths_[text]; ++i) {
        slots.push_back(static_cast<int64_t>(text) * most + i);
      }
    }
    inputs[PairInputs::kPlaces] = torch::tensor(places_, torch::kLong);
    inputs[PairInputs::kTokens] = torch::tensor(tokens_, torch::kLong);
    inputs[PairInputs::kSlots] = torch::tensor(slots, torch::kLong);
    inputs[PairInputs::kTable] =
        torch::zeros({static_cast<int64_t>(lengths_.size()), most});
    inputs[PairInputs::kLengths] = torch::tensor(lengths_, torch::kLong);
  }

 private:
  std::vector<int64_t> places_;
  std::vector<int64_t> tokens_;
  std::vector<int64_t> lengths_;
};

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
  const bool packs = inputs_.is_packed;
  int64_t length = inputs_.max_length;
  if (!packs) {
    size_t longest = 1;
    for (const size_t example : examples) {
      for (const SupervisedText* text : texts_of(pairs_[example])) {
        longest = std::max(longest, text->tokens.size());
      }
    }
    length =
        runtime::round_up(static_cast<int64_t>(longest), inputs_.multiple_of);
  }
  zoo::ModelInput batch;
  batch.loss_only = loss_only;
  DocumentRows rows(examples.size() * (packs ? 1 : 2), length, inputs_);
  LearnedTokens learned;
  size_t row = 0;
  for (const size_t example : examples) {
    for (const size_t pair : sequences_[example]) {
      for (const SupervisedText* text : texts_of(pairs_[pair])) {
        const int64_t begin = rows.add(row, text->tokens);
        learned.add(*text, static_cast<int64_t>(row) * length + begin);
        row += packs ? 0 : 1;
      }
    }
    row += packs ? 1 : 0;
  }
  rows.store(batch);
  learned.store(batch.others);
  return batch;
}

TaskScore PreferenceBatches::report(const zoo::Score& score) const {
  const auto column = [&](PairOutput output) {
    return score.outputs.select(1, static_cast<int64_t>(output));
  };
  const at::Tensor chosen = column(PairOutput::kChosen);
  const at::Tensor rejected = column(PairOutput::kRejected);
  const auto mean = [](const at::Tensor& values) {
    return values.mean().item<double>();
  };
  const double loss = mean(column(PairOutput::kLoss));
  const double accuracy = mean(chosen.gt(rejected).to(at::kDouble));
  const double margin = mean(chosen - rejected);
  TaskScore result{
      formatted(
          "loss {:.4f}, accuracy {:.1f} %, margin {:.4f} of {}",
          loss,
          100 * accuracy,
          margin,
          runtime::count_text(static_cast<int64_t>(pairs_.size()), "pair")),
      {}};
  result.values["heldout_loss"] = loss;
  result.values["heldout_accuracy"] = accuracy;
  result.values["heldout_margin"] = margin;
  result.values["heldout_chosen_reward"] = mean(chosen);
  result.values["heldout_rejected_reward"] = mean(rejected);
  result.values["heldout_pairs"] = pairs_.size();
  return result;
}

} // namespace tessera::tasks
