// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/kto_loss.h"

#include "tessera/runtime/core/error.h"

#include <c10/core/GradMode.h>
#include <torch/types.h>

#include <string_view>
#include <utility>

namespace tessera::tasks {

namespace {

/// The answers themselves, or those that are mismatched.
zoo::ModelInput kto_rows(const zoo::ModelInput& batch, bool mismatched) {
  constexpr std::string_view kPrefix = KtoInputs::kMismatched;
  zoo::NamedTensors rows;
  for (const auto& [name, tensor] : batch.named()) {
    if (name == KtoInputs::kDesirable) {
      continue;
    }
    if (name.starts_with(kPrefix) == mismatched) {
      rows[mismatched ? name.substr(kPrefix.size()) : name] = tensor;
    }
  }
  return zoo::ModelInput::from_named(rows);
}

} // namespace

at::Tensor kto_losses(
    const at::Tensor& rewards,
    const at::Tensor& desirable,
    const at::Tensor& kl,
    const PreferenceOptions& options) {
  const at::Tensor distances = rewards - options.beta * kl.clamp_min(0);
  const at::Tensor signs = 2 * desirable - 1;
  const at::Tensor weights = desirable * options.desirable_weight +
                             (1 - desirable) * options.undesirable_weight;
  return weights * (1 - at::sigmoid(signs * distances));
}

KtoLoss::KtoLoss(
    const PreferenceOptions& options,
    std::unique_ptr<FrozenModel> reference)
    : options_(options),
      reference_(options.has_reference(), std::move(reference)) {}

at::Tensor KtoLoss::log_ratios(
    zoo::Model& model,
    const zoo::ModelInput& batch) {
  // Until backward, which may run layers again.
  model.eval();
  // First, so that it does not run beside the activations of the other one.
  const at::Tensor reference = reference_.log_probabilities(model, batch);
  return answer_log_probabilities(
             model.forward(without_answers(batch)).logits, batch) -
         reference;
}

at::Tensor KtoLoss::rewards(zoo::Model& model, const zoo::ModelInput& batch) {
  return options_.beta *
         log_ratios(model, kto_rows(batch, /*mismatched=*/false));
}

at::Tensor KtoLoss::mismatched_ratios(
    zoo::Model& model,
    const zoo::ModelInput& batch) {
  const c10::NoGradGuard no_grad;
  return log_ratios(model, kto_rows(batch, /*mismatched=*/true));
}

void KtoLoss::begin_step(
    zoo::Model& model,
    const std::vector<zoo::ModelInput>& batches,
    const SumOverRanks& sum_over_ranks) {
  at::Tensor sum;
  int64_t count = 0;
  for (const zoo::ModelInput& batch : batches) {
    const at::Tensor ratios = mismatched_ratios(model, batch);
    count += ratios.size(0);
    const at::Tensor of_batch = ratios.sum(at::kDouble);
    sum = sum.defined() ? sum + of_batch : of_batch;
  }
  const at::Tensor sums = at::stack(
      {sum.cpu(), at::scalar_tensor(static_cast<double>(count), at::kDouble)});
  sum_over_ranks(sums);
  kl_ = (sums[0] / sums[1]).to(at::kFloat);
}

at::Tensor KtoLoss::loss(zoo::Model& model, const zoo::ModelInput& batch) {
  TESSERA_CHECK(
      kl_.defined(), "KtoLoss: loss() is called before the first begin_step()");
  return kto_losses(
             rewards(model, batch),
             batch.others.at(KtoInputs::kDesirable),
             kl_,
             options_)
      .mean();
}

std::optional<int64_t> KtoLoss::count_labels(
    const zoo::ModelInput& batch) const {
  return batch.others.at(KtoInputs::kDesirable).size(0);
}

zoo::ModelOutput KtoLoss::score(
    zoo::Model& model,
    const zoo::ModelInput& batch) {
  const c10::NoGradGuard no_grad;
  const at::Tensor mismatched = mismatched_ratios(model, batch);
  const at::Tensor found = rewards(model, batch);
  zoo::ModelOutput output;
  output.loss = kto_losses(
                    found,
                    batch.others.at(KtoInputs::kDesirable),
                    mismatched.mean(),
                    options_)
                    .mean();
  output.logits = at::stack({found, mismatched}, /*dim=*/1);
  return output;
}

void KtoLoss::add_score(
    const zoo::Head& /*head*/,
    const zoo::ScoredBatch& batch,
    zoo::ScoreSums& sums) const {
  sums.add_loss(
      batch,
      static_cast<double>(
          batch.input.others.at(KtoInputs::kDesirable).size(0)));
}

} // namespace tessera::tasks
