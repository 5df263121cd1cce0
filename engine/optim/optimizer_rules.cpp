// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizer_rules.h"

#include "tessera/engine/optim/optimizer.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace tessera::engine {

namespace {

constexpr const char* kParameterRules = "optimizer.parameters";

} // namespace

OptimizerRules::OptimizerRules(OptimizerOptions options)
    : options_(std::move(options)) {
  for (const ParameterRule& rule : options_.parameters) {
    patterns_.emplace_back(kParameterRules, rule.pattern);
  }
}

void OptimizerRules::check_all_used(const torch::nn::Module& module) const {
  runtime::NamePatterns patterns(kParameterRules);
  for (const runtime::NamePattern& pattern : patterns_) {
    patterns.add(pattern);
  }
  for (const auto& parameter : module.named_parameters()) {
    patterns.first_match(parameter.key());
  }
  patterns.check_all_used();
}

ParameterSettings OptimizerRules::settings_for(
    const std::vector<std::string>& names) const {
  ParameterSettings settings;
  settings.frozen_steps = options_.frozen_steps;
  settings.rule = options_.rule;
  std::optional<double> weight_decay = options_.weight_decay;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    const ParameterRule& rule = options_.parameters[i];
    if (std::none_of(names.begin(), names.end(), [&](const auto& name) {
          return patterns_[i].matches(name);
        })) {
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
