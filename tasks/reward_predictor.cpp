// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/reward_predictor.h"

#include "tessera/runtime/memory/to_device.h"
#include "tessera/tasks/class_values.h"
#include "tessera/tasks/reward_task.h"
#include "tessera/tasks/supervised_batches.h"

#include <torch/types.h>

#include <utility>

namespace tessera::tasks {

RewardPredictor::RewardPredictor(TrainedModel trained, c10::Device device)
    : trained_(std::move(trained)),
      inputs_(reward_inputs(
          trained_.config,
          *trained_.model,
          *trained_.head,
          text::Tokenizer::from_folder(trained_.config.model_folder))),
      keys_(
          {trained_.config.as<RewardTaskOptions>().keys.prompt,
           trained_.config.as<RewardTaskOptions>().completion}),
      encoder_(
          text::Tokenizer::from_folder(trained_.config.model_folder),
          trained_.config.as<RewardTaskOptions>().texts(),
          PromptKind::kDecoder,
          trained_.config.model_folder,
          trained_.head->vocab(),
          trained_.config.max_length),
      device_(device) {
  check_positions(*trained_.model, trained_.config.max_length);
  trained_.place(device);
}

SupervisedText RewardPredictor::text_of(const text::TextRow& row) const {
  if (row.values.contains(keys_.front())) {
    return encoder_.encode(row);
  }
  text::TextRow given = row;
  given.values[keys_.front()] = "";
  return encoder_.encode(given);
}

std::vector<double> RewardPredictor::predict(
    const std::vector<SupervisedText>& texts) const {
  const at::NoGradGuard no_grad;
  RowTexts rows;
  for (const SupervisedText& text : texts) {
    rows.push_back({&text});
  }
  const zoo::ModelInput batch =
      text_rows(rows, inputs_).with_tensors([&](const at::Tensor& tensor) {
        return runtime::to_device(tensor, device_);
      });
  std::vector<double> rewards;
  for (const auto& values : class_values(
           trained_.model->forward(batch).logits, zoo::HeadLabels::kNumbers)) {
    rewards.push_back(values.front());
  }
  return rewards;
}

} // namespace tessera::tasks
