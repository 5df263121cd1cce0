// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/answer_inputs.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/adapters/lora.h"

#include <c10/core/GradMode.h>
#include <torch/types.h>

#include <algorithm>

namespace tessera::tasks {

zoo::ModelInput answer_rows(
    const RowTexts& texts,
    const SupervisedInputs& inputs) {
  zoo::ModelInput batch = text_rows(texts, inputs);
  const int64_t row_length = batch.input_ids.size(1);
  std::vector<int64_t> positions;
  std::vector<int64_t> tokens;
  std::vector<int64_t> lengths;
  for_each_text(
      texts, [&](const SupervisedText& text, size_t row, int64_t begin) {
        begin += static_cast<int64_t>(row) * row_length;
        lengths.push_back(0);
        for (const TokenRange& range : text.answers) {
          for (int64_t i = range.begin; i < range.end; ++i) {
            positions.push_back(begin + i - 1);
            tokens.push_back(text.tokens[static_cast<size_t>(i)]);
            ++lengths.back();
          }
        }
      });
  const int64_t most = *std::max_element(lengths.begin(), lengths.end());
  std::vector<int64_t> slots;
  for (size_t text = 0; text < lengths.size(); ++text) {
    for (int64_t i = 0; i < lengths[text]; ++i) {
      slots.push_back(static_cast<int64_t>(text) * most + i);
    }
  }
  batch.others[AnswerInputs::kPlaces] = torch::tensor(positions, torch::kLong);
  batch.others[AnswerInputs::kTokens] = torch::tensor(tokens, torch::kLong);
  batch.others[AnswerInputs::kSlots] = torch::tensor(slots, torch::kLong);
  batch.others[AnswerInputs::kTable] =
      torch::zeros({static_cast<int64_t>(lengths.size()), most});
  batch.others[AnswerInputs::kLengths] = torch::tensor(lengths, torch::kLong);
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
