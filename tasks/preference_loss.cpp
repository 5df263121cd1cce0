// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/preference_loss.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/tasks/preference_batches.h"
#include "tessera/zoo/adapters/lora.h"

#include <torch/types.h>

#include <utility>

namespace tessera::tasks {

namespace {

/// The batch as a model takes it.
zoo::ModelInput without_pairs(const zoo::ModelInput& batch) {
  zoo::ModelInput input = batch;
  input.loss_only = false;
  for (const char* name :
       {PairInputs::kPlaces,
        PairInputs::kTokens,
        PairInputs::kSlots,
        PairInputs::kTable,
        PairInputs::kLengths}) {
    input.others.erase(name);
  }
  return input;
}

/// The log-probabilities of the answers' tokens, summed: [2 P] float32.
at::Tensor log_probabilities(
    const at::Tensor& logits,
    const zoo::ModelInput& batch) {
  TESSERA_CHECK(
      logits.defined() && logits.dim() == 3,
      "preference: the model has no logits of tokens; use a language model");
  const at::Tensor predicting = logits.flatten(0, 1).index_select(
      0, batch.others.at(PairInputs::kPlaces));
  const at::Tensor losses = at::cross_entropy_loss(
      predicting.to(at::kFloat),
      batch.others.at(PairInputs::kTokens),
      /*weight=*/{},
      at::Reduction::None);
  // Each of them is once in the table: the order of sums is always the same.
  const at::Tensor table = batch.others.at(PairInputs::kTable);
  return -table.flatten()
              .index_copy(0, batch.others.at(PairInputs::kSlots), losses)
              .view(table.sizes())
              .sum(1);
}

} // namespace

void visit_fields(runtime::OptionFields& fields, PreferenceOptions& options) {
  fields.choice(
      "loss",
      options.loss,
      {{"sigmoid", PreferenceLossKind::kSigmoid},
       {"ipo", PreferenceLossKind::kIpo}},
      "`sigmoid`: DPO; `ipo`: the squared distance to 1 / (2 beta) of means over tokens");
  fields.field(
      "beta",
      options.beta,
      {.min = 0, .open_min = true},
      "how much it costs to differ from the reference");
  fields.field(
      "label_smoothing",
      options.label_smoothing,
      {.min = 0, .max = 0.5, .open_max = true},
      "with `sigmoid`: the share of pairs that are taken to be the wrong way round");
  fields.field(
      "reference_free",
      options.reference_free,
      "there is no reference: its log-probabilities count as 0");
  fields.object(
      "reference",
      options.reference,
      "the reference; by default the model that `model.lora` adapts, with the adapter switched off");
}

PairScores pair_scores(
    const at::Tensor& policy,
    const at::Tensor& reference,
    const at::Tensor& lengths,
    const PreferenceOptions& options) {
  const bool is_ipo = options.loss == PreferenceLossKind::kIpo;
  const auto scaled = [&](const at::Tensor& sums) {
    return (is_ipo ? sums / lengths : sums).view({-1, 2});
  };
  const at::Tensor own = scaled(policy);
  const at::Tensor fixed =
      reference.defined() ? scaled(reference) : at::zeros_like(own);
  const at::Tensor ratios = own - fixed;
  const at::Tensor h = ratios.select(1, 0) - ratios.select(1, 1);
  const double smoothing = options.label_smoothing;
  PairScores scores;
  scores.losses = is_ipo
                      ? (h - 1 / (2 * options.beta)).square()
                      : -at::log_sigmoid(options.beta * h) * (1 - smoothing) -
                            at::log_sigmoid(-options.beta * h) * smoothing;
  const at::Tensor rewards = options.beta * ratios.detach();
  scores.chosen = rewards.select(1, 0);
  scores.rejected = rewards.select(1, 1);
  return scores;
}

PreferenceLoss::PreferenceLoss(
    const PreferenceOptions& options,
    std::unique_ptr<FrozenModel> reference)
    : options_(options), reference_(std::move(reference)) {}

at::Tensor PreferenceLoss::reference_of(
    zoo::Model& model,
    const zoo::ModelInput& batch) {
  if (options_.reference_free) {
    return {};
  }
  const c10::NoGradGuard no_grad;
  const zoo::ModelInput input = without_pairs(batch);
  if (reference_ != nullptr) {
    return log_probabilities(reference_->forward(input).logits, batch);
  }
  const zoo::AdaptersOff base(model);
  return log_probabilities(model.forward(input).logits, batch);
}

PairScores PreferenceLoss::scores(
    zoo::Model& model,
    const zoo::ModelInput& batch) {
  // Until backward, which may run layers again.
  model.eval();
  // First, so that it does not run beside the activations of the other one.
  const at::Tensor reference = reference_of(model, batch);
  const at::Tensor policy =
      log_probabilities(model.forward(without_pairs(batch)).logits, batch);
  return pair_scores(
      policy, reference, batch.others.at(PairInputs::kLengths), options_);
}

at::Tensor PreferenceLoss::loss(
    zoo::Model& model,
    const zoo::ModelInput& batch) {
  return scores(model, batch).losses.mean();
}

std::optional<int64_t> PreferenceLoss::count_labels(
    const zoo::ModelInput& batch) const {
  return batch.others.at(PairInputs::kLengths).size(0) / 2;
}

zoo::ModelOutput PreferenceLoss::score(
    zoo::Model& model,
    const zoo::ModelInput& batch) {
  const PairScores found = scores(model, batch);
  zoo::ModelOutput output;
  output.loss = found.losses.mean();
  output.logits =
      at::stack({found.losses, found.chosen, found.rejected}, /*dim=*/1);
  return output;
}

void PreferenceLoss::add_score(
    const zoo::Head& /*head*/,
    const zoo::ScoredBatch& batch,
    zoo::ScoreSums& sums) const {
  sums.add_loss(
      batch,
      static_cast<double>(batch.input.others.at(PairInputs::kLengths).size(0)));
}

} // namespace tessera::tasks
