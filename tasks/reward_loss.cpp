// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/reward_loss.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_fields.h"

#include <torch/types.h>

namespace tessera::tasks {

void visit_fields(runtime::OptionFields& fields, RewardOptions& options) {
  fields.field(
      "center_weight",
      options.center_weight,
      {.min = 0},
      "weight of the squared sum of both rewards of a pair, which keeps rewards around 0");
}

PairScores reward_scores(
    const at::Tensor& rewards,
    const at::Tensor& margins,
    const RewardOptions& options) {
  const at::Tensor pairs = rewards.to(at::kFloat).view({-1, 2});
  const at::Tensor chosen = pairs.select(1, 0);
  const at::Tensor rejected = pairs.select(1, 1);
  at::Tensor differences = chosen - rejected;
  if (margins.defined()) {
    differences = differences - margins;
  }
  PairScores scores;
  scores.losses = -at::log_sigmoid(differences);
  if (options.center_weight > 0) {
    scores.losses =
        scores.losses + options.center_weight * (chosen + rejected).square();
  }
  scores.chosen = chosen.detach();
  scores.rejected = rejected.detach();
  return scores;
}

PairScores RewardLoss::scores(zoo::Model& model, const zoo::ModelInput& batch) {
  zoo::ModelInput input = batch;
  input.loss_only = false;
  input.others.erase(kRewardMargins);
  const at::Tensor rewards = model.forward(input).logits;
  TESSERA_CHECK(
      rewards.defined() && rewards.numel() == batch.input_ids.size(0),
      "reward: a {} does not give one number for each text; use a classifier with one output",
      model.architecture());
  const auto margins = batch.others.find(kRewardMargins);
  return reward_scores(
      rewards.flatten(),
      margins == batch.others.end() ? at::Tensor() : margins->second,
      options_);
}

} // namespace tessera::tasks
