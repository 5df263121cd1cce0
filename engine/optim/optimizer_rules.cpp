// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/optimizer_rules.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/core/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
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
  for (const std::string& name : all_names(module)) {
    patterns.first_match(name);
  }
  patterns.check_all_used();
}

void OptimizerRules::check_all_used(
    const torch::nn::Module& module,
    Communicator& job) const {
  // Pipeline stages may have rules of their own.
  const std::vector<std::string> names = all_names(module);
  std::map<std::string, bool> matched;
  for (const runtime::NamePattern& pattern : patterns_) {
    matched[pattern.text()] =
        std::any_of(names.begin(), names.end(), [&](const std::string& name) {
          return pattern.matches(name);
        });
  }
  std::map<std::string, bool> used;
  for (const std::string& text : runtime::gather_texts(
           job,
           nlohmann::json(matched).dump(),
           "use of optimizer.parameters")) {
    for (const auto& [pattern, is_used] :
         nlohmann::json::parse(text).get<std::map<std::string, bool>>()) {
      used[pattern] = used[pattern] || is_used;
    }
  }
  const auto unused = std::find_if(
      used.begin(), used.end(), [](const auto& one) { return !one.second; });
  if (unused == used.end()) {
    return;
  }
  std::vector<std::string> all;
  for (const std::string& text : runtime::gather_texts(
           job, nlohmann::json(names).dump(), "names of parameters")) {
    for (auto& name :
         nlohmann::json::parse(text).get<std::vector<std::string>>()) {
      all.push_back(std::move(name));
    }
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  TESSERA_FAIL(
      "{}: '{}' matches nothing in the module, on any pipeline stage{}.",
      kParameterRules,
      unused->first,
      runtime::NamePattern(kParameterRules, unused->first).nearest_hint(all));
}

bool OptimizerRules::is_for(size_t rule, const std::vector<std::string>& names)
    const {
  const auto all = with_other_names(names);
  return std::any_of(all.begin(), all.end(), [&](const auto& name) {
    return patterns_[rule].matches(name);
  });
}

std::vector<std::string> OptimizerRules::with_other_names(
    const std::vector<std::string>& names) const {
  std::vector<std::string> all = names;
  for (const std::string& name : names) {
    const auto others = options_.other_names.find(name);
    if (others != options_.other_names.end()) {
      all.insert(all.end(), others->second.begin(), others->second.end());
    }
  }
  return all;
}

std::vector<std::string> OptimizerRules::all_names(
    const torch::nn::Module& module) const {
  std::vector<std::string> names;
  for (const auto& parameter : module.named_parameters()) {
    names.push_back(parameter.key());
  }
  return with_other_names(names);
}

ParameterSettings OptimizerRules::settings_for(
    const std::vector<std::string>& names) const {
  ParameterSettings settings;
  settings.names = with_other_names(names);
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
