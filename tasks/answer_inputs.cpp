// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/answer_inputs.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/round_up.h"
#include "tessera/zoo/adapters/lora.h"

#include <c10/core/GradMode.h>
#include <torch/types.h>

#include <algorithm>

namespace tessera::tasks {

void LearnedTokens::add(const SupervisedText& text, int64_t begin) {
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

void LearnedTokens::store(zoo::NamedTensors& inputs) const {
  const int64_t most = *std::max_element(lengths_.begin(), lengths_.end());
  std::vector<int64_t> slots;
  for (size_t text = 0; text < lengths_.size(); ++text) {
    for (int64_t i = 0; i < lengths_[text]; ++i) {
      slots.push_back(static_cast<int64_t>(text) * most + i);
    }
  }
  inputs[AnswerInputs::kPlaces] = torch::tensor(places_, torch::kLong);
  inputs[AnswerInputs::kTokens] = torch::tensor(tokens_, torch::kLong);
  inputs[AnswerInputs::kSlots] = torch::tensor(slots, torch::kLong);
  inputs[AnswerInputs::kTable] =
      torch::zeros({static_cast<int64_t>(lengths_.size()), most});
  inputs[AnswerInputs::kLengths] = torch::tensor(lengths_, torch::kLong);
}

zoo::ModelInput answer_rows(
    const std::vector<const SupervisedText*>& texts,
    const SupervisedInputs& inputs) {
  size_t longest = 1;
  for (const SupervisedText* text : texts) {
    longest = std::max(longest, text->tokens.size());
  }
  const int64_t length =
      runtime::round_up(static_cast<int64_t>(longest), inputs.multiple_of);
  DocumentRows rows(texts.size(), length, inputs);
  LearnedTokens learned;
  for (size_t row = 0; row < texts.size(); ++row) {
    rows.add(row, texts[row]->tokens);
    learned.add(*texts[row], static_cast<int64_t>(row) * length);
  }
  zoo::ModelInput batch;
  rows.store(batch);
  learned.store(batch.others);
  return batch;
}

zoo::ModelInput without_answers(const zoo::ModelInput& batch) {
  zoo::ModelInput input = batch;
  input.loss_only = false;
  for (const char* name :
       {AnswerInputs::kPlaces,
        AnswerInputs::kTokens,
        AnswerInputs::kSlots,
        AnswerInputs::kTable,
        AnswerInputs::kLengths}) {
    input.others.erase(name);
  }
  return input;
}

at::Tensor answer_log_probabilities(
    const at::Tensor& logits,
    const zoo::ModelInput& batch) {
  TESSERA_CHECK(
      logits.defined() && logits.dim() == 3,
      "preference: the model has no logits of tokens; use a language model");
  const at::Tensor predicting = logits.flatten(0, 1).index_select(
      0, batch.others.at(AnswerInputs::kPlaces));
  const at::Tensor losses = at::cross_entropy_loss(
      predicting.to(at::kFloat),
      batch.others.at(AnswerInputs::kTokens),
      /*weight=*/{},
      at::Reduction::None);
  // Each of them is once in the table: the order of sums is always the same.
  const at::Tensor table = batch.others.at(AnswerInputs::kTable);
  return -table.flatten()
              .index_copy(0, batch.others.at(AnswerInputs::kSlots), losses)
              .view(table.sizes())
              .sum(1);
}

at::Tensor AnswerReference::log_probabilities(
    zoo::Model& model,
    const zoo::ModelInput& batch) {
  if (!is_used_) {
    return {};
  }
  const c10::NoGradGuard no_grad;
  const zoo::ModelInput input = without_answers(batch);
  if (other_ != nullptr) {
    return answer_log_probabilities(other_->forward(input).logits, batch);
  }
  const zoo::AdaptersOff base(model);
  return answer_log_probabilities(model.forward(input).logits, batch);
}

} // namespace tessera::tasks
