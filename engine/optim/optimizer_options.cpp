// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizer_options.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_check.h"

#include <algorithm>

namespace tessera {

namespace {

void check_moment_dtype(const OptimizerOptions& options) {
  if (!options.moment_dtype) {
    return;
  }
  const auto check_rule = [](const UpdateRule& rule) {
    TESSERA_CHECK(
        rule.optimizer().takes_moment_dtype(),
        "optimizer: moment_dtype is BFloat16, which {} does not support; remove it, or use {}.",
        name_of(rule),
        engine::names_of_optimizers(&engine::Optimizer::takes_moment_dtype));
  };
  check_rule(options.rule);
  for (const ParameterRule& rule : options.parameters) {
    check_rule(rule.rule.value_or(options.rule));
  }
}

} // namespace

void check_weight_decay(
    const UpdateRule& rule,
    const std::optional<double>& weight_decay) {
  TESSERA_CHECK(
      !weight_decay || rule.optimizer().takes_weight_decay(),
      "optimizer: weight_decay is {} for a user-defined optimizer; set it in UserOptimizerOptions::make, where the optimizer is constructed.",
      weight_decay.value_or(0));
}

void check(const OptimizerOptions& options) {
  runtime::check_fields("optimizer", options);
  options.rule.optimizer().check(options.rule.options());
  check_weight_decay(options.rule, options.weight_decay);
  check_moment_dtype(options);
  for (const ParameterRule& rule : options.parameters) {
    if (rule.rule) {
      rule.rule->optimizer().check(rule.rule->options());
      check_weight_decay(*rule.rule, rule.weight_decay);
    }
  }
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

} // namespace tessera
