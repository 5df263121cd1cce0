// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/preference_loss.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_fields.h"

#include <torch/types.h>

#include <string>
#include <utility>
#include <vector>

namespace tessera::tasks {

namespace {

using Terms = const at::Tensor&;
using PairOptions = const PreferenceOptions&;

/// -log sigmoid(beta h), smoothed.
at::Tensor sigmoid_losses(const at::Tensor& h, PairOptions options) {
  const double smoothing = options.label_smoothing;
  return -at::log_sigmoid(options.beta * h) * (1 - smoothing) -
         at::log_sigmoid(-options.beta * h) * smoothing;
}

at::Tensor dpo_losses(Terms chosen, Terms rejected, PairOptions options) {
  return sigmoid_losses(chosen - rejected, options);
}

at::Tensor robust_losses(Terms chosen, Terms rejected, PairOptions options) {
  const at::Tensor h = options.beta * (chosen - rejected);
  const double smoothing = options.label_smoothing;
  return (at::log_sigmoid(-h) * smoothing -
          at::log_sigmoid(h) * (1 - smoothing)) /
         (1 - 2 * smoothing);
}

at::Tensor hinge_losses(Terms chosen, Terms rejected, PairOptions options) {
  return at::relu(1 - options.beta * (chosen - rejected));
}

at::Tensor ipo_losses(Terms chosen, Terms rejected, PairOptions options) {
  return (chosen - rejected - 1 / (2 * options.beta)).square();
}

at::Tensor simpo_losses(Terms chosen, Terms rejected, PairOptions options) {
  return sigmoid_losses(
      chosen - rejected - options.gamma / options.beta, options);
}

/// log(1 - p) of log p.
at::Tensor log_complement(const at::Tensor& log_p) {
  constexpr double kMost = -1e-6; // p = 1 has infinite odds
  return at::log(-at::expm1(at::clamp_max(log_p, kMost)));
}

at::Tensor orpo_losses(Terms chosen, Terms rejected, PairOptions options) {
  const at::Tensor log_odds =
      chosen - rejected - log_complement(chosen) + log_complement(rejected);
  return -options.beta * at::log_sigmoid(log_odds);
}

/// The values of `preference.loss` for which `has` is true.
template <typename Has>
std::vector<std::string> names_of_rules(const Has& has) {
  std::vector<std::string> names;
  for (const PreferenceRule& rule : preference_rules()) {
    if (has(rule)) {
      names.emplace_back(rule.name);
    }
  }
  return names;
}

} // namespace

const std::vector<PreferenceRule>& preference_rules() {
  using Kind = PreferenceLossKind;
  // Reference, means, smoothing, weight of the likelihood.
  static const std::vector<PreferenceRule> rules{
      {"sigmoid", Kind::kSigmoid, true, false, true, 0, dpo_losses},
      {"robust", Kind::kRobust, true, false, true, 0, robust_losses},
      {"hinge", Kind::kHinge, true, false, false, 0, hinge_losses},
      {"ipo", Kind::kIpo, true, true, false, 0, ipo_losses},
      {"simpo", Kind::kSimpo, false, true, true, 0, simpo_losses},
      {"cpo", Kind::kCpo, false, false, true, 1, dpo_losses},
      {"orpo", Kind::kOrpo, false, true, false, 1, orpo_losses},
      {"kto", Kind::kKto, true, false, false, 0, nullptr}};
  return rules;
}

const PreferenceRule& rule_of(PreferenceLossKind kind) {
  for (const PreferenceRule& rule : preference_rules()) {
    if (rule.kind == kind) {
      return rule;
    }
  }
  TESSERA_FAIL("preference.loss has no rule {}", static_cast<int>(kind));
}

bool PreferenceOptions::has_reference() const {
  return rule_of(loss).has_reference && !reference_free;
}

void visit_fields(runtime::OptionFields& fields, PreferenceOptions& options) {
  std::vector<std::pair<std::string, PreferenceLossKind>> kinds;
  for (const PreferenceRule& rule : preference_rules()) {
    kinds.emplace_back(rule.name, rule.kind);
  }
  const auto loss = fields.choice(
      "loss",
      options.loss,
      kinds,
      "against a reference `sigmoid` (DPO), `robust`, `hinge` and `ipo`; without one `simpo`, `cpo` and `orpo`; against a reference, of answers that are good or bad each, `kto`; see [texts](../docs/texts.md#better-and-worse-answers)");
  fields.field(
      "beta",
      options.beta,
      {.min = 0, .open_min = true},
      "how much it costs to differ from the reference; without one the scale of rewards, of `orpo` the weight of the odds ratio");
  const auto smoothed = names_of_rules(
      [](const PreferenceRule& rule) { return rule.has_smoothing; });
  fields.when(loss, smoothed, [&] {
    fields.field(
        "label_smoothing",
        options.label_smoothing,
        {.min = 0, .max = 0.5, .open_max = true},
        "the share of pairs that are taken to be the wrong way round");
  });
  fields.when(loss, {"simpo"}, [&] {
    fields.field(
        "gamma",
        options.gamma,
        {.min = 0},
        "the margin that the reward of the better answer is to have");
  });
  const auto paired = names_of_rules(
      [](const PreferenceRule& rule) { return rule.has_pairs(); });
  fields.when(loss, paired, [&] {
    fields.field(
        "nll_weight",
        options.nll_weight,
        {.min = 0},
        "weight of the negative log-likelihood of the better answer, the mean over its tokens; by default 1 with `cpo` and `orpo`, else 0");
  });
  fields.when(loss, {"kto"}, [&] {
    fields.field(
        "desirable_weight",
        options.desirable_weight,
        {.min = 0},
        "weight of good answers: with `undesirable_weight`, where there are more of one kind");
    fields.field(
        "undesirable_weight",
        options.undesirable_weight,
        {.min = 0},
        "weight of bad answers");
  });
  const auto optional_reference =
      names_of_rules([](const PreferenceRule& rule) {
        return rule.has_reference && rule.has_pairs();
      });
  fields.when(loss, optional_reference, [&] {
    fields.field(
        "reference_free",
        options.reference_free,
        "there is no reference: its log-probabilities count as 0");
  });
  const auto referring = names_of_rules(
      [](const PreferenceRule& rule) { return rule.has_reference; });
  fields.when(loss, referring, [&] {
    fields.object(
        "reference",
        options.reference,
        "the reference; by default the model that `model.lora` adapts, with the adapter switched off");
  });
}

PairScores pair_scores(
    const at::Tensor& policy,
    const at::Tensor& reference,
    const at::Tensor& lengths,
    const PreferenceOptions& options) {
  const PreferenceRule& rule = rule_of(options.loss);
  TESSERA_CHECK(
      rule.has_pairs(), "pair_scores: {} is no loss of pairs", rule.name);
  const auto scaled = [&](const at::Tensor& sums) {
    return (rule.has_means ? sums / lengths : sums).view({-1, 2});
  };
  const at::Tensor policy_scores = scaled(policy);
  const at::Tensor ratios =
      reference.defined() ? policy_scores - scaled(reference) : policy_scores;
  PairScores scores;
  scores.losses =
      rule.losses(ratios.select(1, 0), ratios.select(1, 1), options);
  const double nll_weight = options.nll_weight.value_or(rule.nll_weight);
  if (nll_weight > 0) {
    scores.losses = scores.losses -
                    nll_weight * (policy / lengths).view({-1, 2}).select(1, 0);
  }
  const at::Tensor rewards = options.beta * ratios.detach();
  scores.chosen = rewards.select(1, 0);
  scores.rejected = rewards.select(1, 1);
  return scores;
}

PreferenceLoss::PreferenceLoss(
    const PreferenceOptions& options,
    std::unique_ptr<FrozenModel> reference)
    : options_(options),
      reference_(options.has_reference(), std::move(reference)) {}

PairScores PreferenceLoss::scores(
    zoo::Model& model,
    const zoo::ModelInput& batch) {
  // First, so that it does not run beside the activations of the other one.
  const at::Tensor reference = reference_.log_probabilities(model, batch);
  const at::Tensor policy = answer_log_probabilities(
      model.forward(without_answers(batch)).logits, batch);
  return pair_scores(
      policy, reference, batch.others.at(AnswerInputs::kLengths), options_);
}

int64_t PreferenceLoss::pairs_in(const zoo::ModelInput& batch) const {
  return batch.others.at(AnswerInputs::kLengths).size(0) / 2;
}

} // namespace tessera::tasks
