// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizer_options.h"

#include "tessera/runtime/core/option_fields.h"

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tessera {

namespace {

using runtime::OptionFields;

constexpr runtime::DoubleRange kAtLeast0{.min = 0};
constexpr runtime::DoubleRange kAbove0{.min = 0, .open_min = true};

template <typename Options>
void visit_betas(OptionFields& fields, Options& options) {
  fields.pair(
      "betas",
      options.beta1,
      options.beta2,
      {.min = 0, .max = 1, .open_max = true},
      "decay rates of the moments");
}

template <typename Options>
void visit_adam(OptionFields& fields, Options& options) {
  visit_betas(fields, options);
  fields.field(
      "eps", options.eps, kAbove0, "added to the root of the second moment");
}

void visit_rule(OptionFields& fields, AdamWOptions& options) {
  visit_adam(fields, options);
}

void visit_rule(OptionFields& fields, AdamOptions& options) {
  visit_adam(fields, options);
}

void visit_rule(OptionFields& fields, SgdOptions& options) {
  fields.field("momentum", options.momentum, kAtLeast0, "momentum");
  fields.field(
      "dampening", options.dampening, kAtLeast0, "dampening of the momentum");
  fields.field("nesterov", options.nesterov, "Nesterov's momentum");
}

void visit_rule(OptionFields& fields, LionOptions& options) {
  visit_betas(fields, options);
}

void visit_rule(OptionFields& fields, LambOptions& options) {
  visit_adam(fields, options);
  fields.field(
      "max_trust_ratio",
      options.max_trust_ratio,
      kAbove0,
      "maximum ratio of the norms of parameter and update");
}

void visit_rule(OptionFields& fields, AdafactorOptions& options) {
  fields.field(
      "clip_threshold",
      options.clip_threshold,
      kAbove0,
      "updates with a larger root mean square are scaled down to this one");
  fields.field(
      "scale_by_parameter",
      options.scale_by_parameter,
      "multiply the learning rate by the root mean square of the parameter");
  fields.field(
      "min_scale", options.min_scale, kAtLeast0, "minimum of that factor");
  fields.field(
      "decay_exponent",
      options.decay_exponent,
      kAbove0,
      "the decay rate of the second moment is 1 - step^-decay_exponent");
  fields.field("eps", options.eps, kAbove0, "added to squared gradients");
}

void visit_rule(OptionFields& fields, MuonOptions& options) {
  fields.field("momentum", options.momentum, kAtLeast0, "momentum");
  fields.field(
      "not_hidden",
      options.not_hidden,
      "regular expressions, searched for in names: matrices that AdamW trains instead");
  visit_adam(fields, options.rest);
  fields.field("nesterov", options.nesterov, "Nesterov's momentum");
  fields.field(
      "newton_schulz_steps",
      options.newton_schulz_steps,
      {.min = 1, .max = 100},
      "iterations of the orthogonalization");
  fields.field(
      "match_adamw",
      options.match_adamw,
      "give updates the root mean square of AdamW's, so that both can use one learning rate");
  fields.choice(
      "compute_dtype",
      options.compute_dtype,
      {{"float32", at::kFloat},
       {"bfloat16", at::kBFloat16},
       {"float16", at::kHalf},
       {"float64", at::kDouble}},
      "dtype of the iterations, by default `bfloat16` on CUDA and that of the master weights on the CPU");
}

void visit_rule(OptionFields& /*fields*/, UserOptimizerOptions& /*options*/) {}

/// The optimizers of configurations, with their defaults. A user's optimizer is
/// a function.
const std::vector<std::pair<std::string, UpdateRule>>& rule_names() {
  static const std::vector<std::pair<std::string, UpdateRule>> names{
      {"adamw", AdamWOptions{}},
      {"adam", AdamOptions{}},
      {"sgd", SgdOptions{}},
      {"lion", LionOptions{}},
      {"lamb", LambOptions{}},
      {"adafactor", AdafactorOptions{}},
      {"muon", MuonOptions{}}};
  return names;
}

runtime::OptionChoice choose_rule(
    OptionFields& fields,
    std::optional<UpdateRule>& rule,
    const char* doc) {
  // The index, if it is one of configurations.
  std::vector<std::pair<std::string, std::optional<size_t>>> choices;
  for (const auto& [name, defaults] : rule_names()) {
    choices.emplace_back(name, defaults.index());
  }
  std::optional<size_t> index;
  if (rule && rule->index() < choices.size()) {
    index = rule->index();
  }
  const auto choice = fields.choice("type", index, choices, doc);
  if (index && (!rule || index != rule->index())) {
    rule = rule_names()[*index].second;
  }
  return choice;
}

/// The fields of the chosen optimizer.
void visit_chosen(
    OptionFields& fields,
    const runtime::OptionChoice& choice,
    std::optional<UpdateRule>& rule) {
  for (const auto& [name, defaults] : rule_names()) {
    fields.when(choice, {name}, [&, &kind = defaults] {
      UpdateRule other = kind; // a field list may show all optimizers
      UpdateRule& shown = rule && rule->index() == kind.index() ? *rule : other;
      std::visit([&](auto& options) { visit_rule(fields, options); }, shown);
    });
  }
}

} // namespace

void visit_fields(OptionFields& fields, ParameterRule& rule) {
  fields.field(
      runtime::required("pattern"),
      rule.pattern,
      "regular expression that matches a whole name");
  fields.field(
      "lr_scale", rule.lr_scale, kAtLeast0, "factor of the learning rate");
  fields.field(
      "weight_decay",
      rule.weight_decay,
      kAtLeast0,
      "in place of `optimizer.weight_decay`");
  fields.field(
      "hold_steps",
      rule.hold_steps,
      {.min = 0},
      "in place of `optimizer.hold_steps`");
  const auto choice = choose_rule(
      fields,
      rule.rule,
      "optimizer of these parameters, with keys and defaults of its own, in place of `optimizer.type`");
  visit_chosen(fields, choice, rule.rule);
}

void visit_fields(OptionFields& fields, OptimizerOptions& options) {
  std::optional<UpdateRule> rule = options.rule;
  const auto choice = choose_rule(fields, rule, "the optimizer");
  fields.field(
      "lr", options.lr, kAtLeast0, "peak learning rate of the schedule");
  visit_chosen(fields, choice, rule);
  options.rule = *rule;
  double weight_decay =
      options.weight_decay.value_or(default_weight_decay(options.rule));
  fields.field(
      "weight_decay",
      weight_decay,
      kAtLeast0,
      "decoupled, except for `adam` and `sgd`; by default 0 for `adam`, `sgd`, `lion` and `adafactor`");
  options.weight_decay = weight_decay;
  fields.field(
      "hold_steps",
      options.hold_steps,
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
  fields.choice(
      "placement",
      options.placement,
      {{"auto", StatePlacement::kAutomatic},
       {"device", StatePlacement::kWithParameters},
       {"host", StatePlacement::kHost},
       {"nvme", StatePlacement::kNvme}},
      "tier of master weights and moments; `auto` follows `memory`, and without `memory.device_bytes` is the device");
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
