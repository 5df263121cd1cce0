// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizer_options.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/name_pattern.h"
#include "tessera/runtime/core/option_check.h"
#include "tessera/sharding/tensors/name_patterns.h"

#include <algorithm>

namespace tessera {

namespace {

/// What holds between the fields of each kind of optimizer.
struct RuleChecks {
  void operator()(const SgdOptions& options) const {
    TESSERA_CHECK(
        !options.nesterov || (options.momentum > 0 && options.dampening == 0),
        "SGD: nesterov needs a momentum above 0 and no dampening; they are {} and {}.",
        options.momentum,
        options.dampening);
  }
  void operator()(const MuonOptions& options) const {
    for (const std::string& pattern : options.not_hidden) {
      static_cast<void>(
          runtime::NamePattern("Muon: not_hidden", pattern)); // throws
    }
  }
  void operator()(const UserOptimizerOptions& options) const {
    TESSERA_CHECK(
        options.make != nullptr,
        "UserOptimizerOptions: make is empty; set it to a function that returns your optimizer.");
  }
  template <typename Options>
  void operator()(const Options& /*options*/) const {}
};

void check_user_decay(
    const UpdateRule& rule,
    const std::optional<double>& weight_decay) {
  TESSERA_CHECK(
      !weight_decay || !std::holds_alternative<UserOptimizerOptions>(rule),
      "optimizer: weight_decay is {} for a user-defined optimizer; set it in UserOptimizerOptions::make, where the optimizer is constructed.",
      weight_decay.value_or(0));
}

void check_moment_dtype(const OptimizerOptions& options) {
  if (!options.moment_dtype) {
    return;
  }
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
  runtime::check_fields("optimizer", options);
  std::visit(RuleChecks{}, options.rule);
  check_user_decay(options.rule, options.weight_decay);
  check_moment_dtype(options);
  std::vector<std::string> texts;
  for (const ParameterRule& rule : options.parameters) {
    if (rule.rule) {
      std::visit(RuleChecks{}, *rule.rule);
      check_user_decay(*rule.rule, rule.weight_decay);
    }
    texts.push_back(rule.pattern);
  }
  auto patterns =
      sharding::NamePatterns::of_paths("optimizer.parameters", texts);
  for (const auto& parameter : module.named_parameters()) {
    patterns.first_match(parameter.key());
  }
  patterns.check_all_used();
}

double default_weight_decay(const UpdateRule& rule) {
  return std::holds_alternative<AdamWOptions>(rule) ||
                 std::holds_alternative<LambOptions>(rule) ||
                 std::holds_alternative<MuonOptions>(rule)
             ? 0.01
             : 0;
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
