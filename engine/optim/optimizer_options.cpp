// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizer_options.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/name_pattern.h"
#include "tessera/sharding/tensors/name_patterns.h"

#include <algorithm>
#include <cmath>

namespace tessera {

namespace {

void check_at_least_0(const char* where, const char* name, double value) {
  TESSERA_CHECK(
      value >= 0 && std::isfinite(value),
      "{}: {} is {}; it must be finite and at least 0.",
      where,
      name,
      value);
}

void check_above_0(const char* where, const char* name, double value) {
  TESSERA_CHECK(
      value > 0 && std::isfinite(value),
      "{}: {} is {}; it must be finite and above 0.",
      where,
      name,
      value);
}

template <typename Options>
void check_betas(const char* where, const Options& options) {
  TESSERA_CHECK(
      options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 &&
          options.beta2 < 1,
      "{}: betas are ({}, {}); each must be at least 0 and below 1.",
      where,
      options.beta1,
      options.beta2);
}

struct RuleChecks {
  void operator()(const AdamWOptions& options) const {
    check_betas("AdamW", options);
    check_above_0("AdamW", "eps", options.eps);
  }
  void operator()(const AdamOptions& options) const {
    check_betas("Adam", options);
    check_above_0("Adam", "eps", options.eps);
  }
  void operator()(const SgdOptions& options) const {
    check_at_least_0("SGD", "momentum", options.momentum);
    TESSERA_CHECK(
        !options.nesterov || (options.momentum > 0 && options.dampening == 0),
        "SGD: nesterov needs a momentum above 0 and no dampening; they are {} and {}.",
        options.momentum,
        options.dampening);
  }
  void operator()(const LionOptions& options) const {
    check_betas("Lion", options);
  }
  void operator()(const LambOptions& options) const {
    check_betas("LAMB", options);
    check_above_0("LAMB", "eps", options.eps);
    check_above_0("LAMB", "max_trust_ratio", options.max_trust_ratio);
  }
  void operator()(const AdafactorOptions& options) const {
    check_above_0("Adafactor", "decay_exponent", options.decay_exponent);
    check_above_0("Adafactor", "eps", options.eps);
    check_above_0("Adafactor", "clip_threshold", options.clip_threshold);
    check_at_least_0("Adafactor", "min_scale", options.min_scale);
  }
  void operator()(const MuonOptions& options) const {
    check_at_least_0("Muon", "momentum", options.momentum);
    TESSERA_CHECK(
        options.newton_schulz_steps >= 1,
        "Muon: newton_schulz_steps is {}; it must be at least 1.",
        options.newton_schulz_steps);
    for (const std::string& pattern : options.not_hidden) {
      static_cast<void>(
          runtime::NamePattern("Muon: not_hidden", pattern)); // throws
    }
    (*this)(options.rest);
  }
  void operator()(const UserOptimizerOptions& options) const {
    TESSERA_CHECK(
        options.make != nullptr,
        "UserOptimizerOptions: make is empty; set it to a function that returns your optimizer.");
  }
};

void check_user_decay(
    const UpdateRule& rule,
    const std::optional<double>& weight_decay) {
  TESSERA_CHECK(
      !weight_decay || !std::holds_alternative<UserOptimizerOptions>(rule),
      "optimizer: weight_decay is {} for a user-defined optimizer; set it in UserOptimizerOptions::make, where the optimizer is constructed.",
      weight_decay.value_or(0));
}

void check(const ParameterRule& rule) {
  check_at_least_0(
      "optimizer.parameters", "lr_scale", rule.lr_scale.value_or(0));
  check_at_least_0(
      "optimizer.parameters", "weight_decay", rule.weight_decay.value_or(0));
  TESSERA_CHECK(
      rule.hold_steps.value_or(0) >= 0,
      "optimizer.parameters: hold_steps is {}; it must be at least 0.",
      *rule.hold_steps);
  if (rule.rule) {
    std::visit(RuleChecks{}, *rule.rule);
    check_user_decay(*rule.rule, rule.weight_decay);
  }
}

void check_moment_dtype(const OptimizerOptions& options) {
  if (!options.moment_dtype) {
    return;
  }
  TESSERA_CHECK(
      *options.moment_dtype == at::kBFloat16,
      "optimizer: moment_dtype is {}; it must be BFloat16, or unset for the dtype of the master weights.",
      *options.moment_dtype);
  const auto check_rule = [](const UpdateRule& rule) {
    TESSERA_CHECK(
        !std::holds_alternative<AdafactorOptions>(rule) &&
            !std::holds_alternative<MuonOptions>(rule) &&
            !std::holds_alternative<UserOptimizerOptions>(rule),
        "optimizer: moment_dtype is BFloat16, which {} does not support; remove it, or use AdamW, Adam, SGD, Lion or LAMB.",
        name_of(rule));
  };
  check_rule(options.rule);
  for (const ParameterRule& rule : options.parameters) {
    check_rule(rule.rule.value_or(options.rule));
  }
}

} // namespace

void check(const OptimizerOptions& options, const torch::nn::Module& module) {
  check_at_least_0("optimizer", "lr", options.lr);
  check_at_least_0(
      "optimizer", "weight_decay", options.weight_decay.value_or(0));
  TESSERA_CHECK(
      options.hold_steps >= 0,
      "optimizer: hold_steps is {}; it must be at least 0.",
      options.hold_steps);
  std::visit(RuleChecks{}, options.rule);
  check_user_decay(options.rule, options.weight_decay);
  check_moment_dtype(options);
  std::vector<std::string> texts;
  for (const ParameterRule& rule : options.parameters) {
    check(rule);
    texts.push_back(rule.pattern);
  }
  auto patterns =
      sharding::NamePatterns::of_paths("optimizer.parameters", texts);
  for (const auto& parameter : module.named_parameters()) {
    patterns.first_match(parameter.key());
  }
  patterns.check_all_used();
}

bool updates_elements_alone(const UpdateRule& rule) {
  return std::holds_alternative<AdamWOptions>(rule) ||
         std::holds_alternative<AdamOptions>(rule) ||
         std::holds_alternative<SgdOptions>(rule) ||
         std::holds_alternative<LionOptions>(rule);
}

bool updates_elements_alone(const OptimizerOptions& options) {
  return updates_elements_alone(options.rule) &&
         std::all_of(
             options.parameters.begin(),
             options.parameters.end(),
             [](const ParameterRule& parameter) {
               return !parameter.rule ||
                      updates_elements_alone(*parameter.rule);
             });
}

const char* name_of(const UpdateRule& rule) {
  static constexpr const char* kNames[] = {
      "AdamW",
      "Adam",
      "SGD",
      "Lion",
      "LAMB",
      "Adafactor",
      "Muon",
      "a user-defined optimizer"};
  static_assert(std::size(kNames) == std::variant_size_v<UpdateRule>);
  return kNames[rule.index()];
}

} // namespace tessera
