// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizer_rules.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/runtime/comm/pattern_use.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace tessera::engine {

namespace {

constexpr const char* kParameterRules = "optimizer.parameters";

} // namespace

OptimizerRules::OptimizerRules(OptimizerOptions options, OtherNames other_names)
    : options_(std::move(options)), other_names_(std::move(other_names)) {
  for (const ParameterRule& rule : options_.parameters) {
    patterns_.emplace_back(kParameterRules, rule.pattern);
  }
}

runtime::NamePatterns OptimizerRules::tested_on(
    const torch::nn::Module& module) const {
  runtime::NamePatterns patterns(kParameterRules);
  for (const runtime::NamePattern& pattern : patterns_) {
    patterns.add(pattern);
  }
  for (const std::string& name : all_names(module)) {
    patterns.first_match(name);
  }
  return patterns;
}

void OptimizerRules::check_all_used(const torch::nn::Module& module) const {
  tested_on(module).check_all_used();
}

void OptimizerRules::check_all_used(
    const torch::nn::Module& module,
    Communicator& job) const {
  // Pipeline stages may have rules of their own.
  runtime::check_used_on_any_rank(tested_on(module), job);
}

bool OptimizerRules::is_for(size_t rule, const std::vector<std::string>& names)
    const {
  const auto all = runtime::with_other_names(names, other_names_);
  return std::any_of(all.begin(), all.end(), [&](const auto& name) {
    return patterns_[rule].matches(name);
  });
}

std::vector<std::string> OptimizerRules::all_names(
    const torch::nn::Module& module) const {
  std::vector<std::string> names;
  for (const auto& parameter : module.named_parameters()) {
    names.push_back(parameter.key());
  }
  return runtime::with_other_names(names, other_names_);
}

ParameterSettings OptimizerRules::settings_for(
    const std::vector<std::string>& names) const {
  ParameterSettings settings;
  settings.names = runtime::with_other_names(names, other_names_);
  settings.frozen_steps = options_.frozen_steps;
  settings.rule = options_.rule;
  std::optional<double> weight_decay = options_.weight_decay;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    const ParameterRule& rule = options_.parameters[i];
    if (!is_for(i, names)) {
      continue;
    }
    settings.lr_scale = rule.lr_scale.value_or(settings.lr_scale);
    settings.frozen_steps = rule.frozen_steps.value_or(settings.frozen_steps);
    if (rule.weight_decay) {
      weight_decay = rule.weight_decay;
    }
    if (rule.rule) {
      settings.rule = *rule.rule;
      settings.rule_origin = i + 1;
      settings.rule_version = i + 1;
    }
  }
  settings.weight_decay =
      weight_decay.value_or(settings.rule.optimizer().default_weight_decay());
  return settings;
}

} // namespace tessera::engine
