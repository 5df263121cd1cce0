// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/pair_loss.h"

#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/size_text.h"

#include <torch/types.h>

namespace tessera::tasks {

PairScores PairLoss::evaluated(
    zoo::Model& model,
    const zoo::ModelInput& batch) {
  // Until backward, which may run layers again.
  model.eval();
  return scores(model, batch);
}

at::Tensor PairLoss::loss(zoo::Model& model, const zoo::ModelInput& batch) {
  return evaluated(model, batch).losses.mean();
}

zoo::ModelOutput PairLoss::score(
    zoo::Model& model,
    const zoo::ModelInput& batch) {
  const PairScores found = evaluated(model, batch);
  zoo::ModelOutput output;
  output.loss = found.losses.mean();
  output.logits =
      at::stack({found.losses, found.chosen, found.rejected}, /*dim=*/1);
  return output;
}

void PairLoss::add_score(
    const zoo::Head& /*head*/,
    const zoo::ScoredBatch& batch,
    zoo::ScoreSums& sums) const {
  sums.add_loss(batch, static_cast<double>(pairs_in(batch.input)));
}

TaskScore pair_report(const at::Tensor& outputs) {
  const auto column = [&](PairOutput output) {
    return outputs.select(1, static_cast<int64_t>(output));
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
          runtime::count_text(outputs.size(0), "pair")),
      {}};
  result.values["heldout_loss"] = loss;
  result.values["heldout_accuracy"] = accuracy;
  result.values["heldout_margin"] = margin;
  result.values["heldout_chosen_reward"] = mean(chosen);
  result.values["heldout_rejected_reward"] = mean(rejected);
  result.values["heldout_pairs"] = outputs.size(0);
  return result;
}

} // namespace tessera::tasks
