// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizer_options.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/runtime/core/option_fields.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

namespace {

using runtime::OptionFields;

constexpr runtime::DoubleRange kAtLeast0{.min = 0};
runtime::OptionChoice choose_rule(
    OptionFields& fields,
    std::optional<UpdateRule>& rule,
    const char* doc) {
  using Choice = const engine::Optimizer*;
  std::vector<std::pair<std::string, std::optional<Choice>>> choices;
  std::optional<Choice> chosen;
  for (const engine::Optimizer* optimizer : engine::configurable_optimizers()) {
    choices.emplace_back(optimizer->key(), optimizer);
    if (rule && &rule->optimizer() == optimizer) {
      chosen = optimizer;
    }
  }
  const auto choice = fields.choice("type", chosen, choices, doc);
  if (chosen && (!rule || *chosen != &rule->optimizer())) {
    rule = (*chosen)->with_defaults();
  }
  return choice;
}

/// The fields of the chosen optimizer.
void visit_chosen(
    OptionFields& fields,
    const runtime::OptionChoice& choice,
    std::optional<UpdateRule>& rule) {
  for (const engine::Optimizer* optimizer : engine::configurable_optimizers()) {
    fields.when(choice, {optimizer->key()}, [&] {
      // A field list may show all optimizers.
      UpdateRule other = optimizer->with_defaults();
      const bool is_chosen = rule && &rule->optimizer() == optimizer;
      optimizer->visit_fields(fields, (is_chosen ? *rule : other).options());
    });
  }
}

} // namespace

void visit_fields(OptionFields& fields, ParameterRule& rule) {
  fields.field(
      runtime::required("pattern"),
      rule.pattern,
      "regular expression that matches a whole name of a parameter, in the model, such as `layers.0.attention.query.bias`, or in its checkpoint; the log says how many it matches");
  fields.field(
      "lr_scale", rule.lr_scale, kAtLeast0, "factor of the learning rate");
  const auto choice = choose_rule(
      fields,
      rule.rule,
      "optimizer of these parameters, with keys and defaults of its own, in place of `optimizer.type`");
  visit_chosen(fields, choice, rule.rule);
  if (rule.rule && rule.rule->optimizer().takes_weight_decay() &&
      !rule.weight_decay) {
    rule.weight_decay = rule.rule->optimizer().default_weight_decay();
  }
  fields.field(
      "weight_decay",
      rule.weight_decay,
      kAtLeast0,
      "in place of `optimizer.weight_decay`; with a `type`, by default that of the optimizer");
  fields.field(
      "frozen_steps",
      rule.frozen_steps,
      {.min = 0},
      "in place of `optimizer.frozen_steps`");
}

void visit_fields(OptionFields& fields, OptimizerOptions& options) {
  std::optional<UpdateRule> rule = options.rule;
  const auto choice = choose_rule(fields, rule, "the optimizer");
  fields.field(
      "lr",
      options.lr,
      kAtLeast0,
      "peak learning rate of the schedule; by default another for the weights of `model.folder`");
  visit_chosen(fields, choice, rule);
  options.rule = *rule;
  double weight_decay = options.weight_decay.value_or(
      options.rule.optimizer().default_weight_decay());
  fields.field(
      "weight_decay",
      weight_decay,
      kAtLeast0,
      "decoupled, except for `adam` and `sgd`; by default 0.01 for `adamw`, `lamb`, `muon`, `one_bit_adam`, `zero_one_adam` and `one_bit_lamb`, else 0");
  options.weight_decay = weight_decay;
  fields.field(
      "frozen_steps",
      options.frozen_steps,
      {.min = 0},
      "number of first steps in which only the moments are updated, not the parameters");
  fields.choice(
      "moment_dtype",
      options.moment_dtype,
      {{"float32", std::nullopt}, {"bfloat16", at::kBFloat16}},
      "`bfloat16` halves the memory of moments; not with `adafactor` and `muon`");
  fields.field(
      "stochastic_rounding",
      options.stochastic_rounding,
      "round bfloat16 moments and weights stochastically, so that small updates are not lost");
  fields.field(
      "ema_decay",
      options.ema_decay,
      {.min = 0, .max = 1, .open_max = true},
      "keep an exponential moving average of the trained weights with this decay, e.g. 0.999, beside the optimizer state; 0: none. See `training.ema_evaluate`");
  fields.field(
      "ema_warmup",
      options.ema_warmup,
      "limit the decay of a step to (1 + n) / (10 + n), n being the number of steps before it (2/11 in the second step), so that the average follows the weights closely at first");
  fields.choice(
      "overlap",
      options.overlap,
      {{"auto", UpdateOverlap::kAutomatic},
       {"off", UpdateOverlap::kOff},
       {"wait", UpdateOverlap::kWait},
       {"speculate", UpdateOverlap::kSpeculate}},
      "which part of the optimizer step overlaps with forward and backward; the results are the same. See [docs/offload.md](../docs/offload.md#when-updates-run)");
  fields.objects(
      "parameters",
      options.parameters,
      "overrides for some parameters; if two match, the later one wins");
}

} // namespace tessera
