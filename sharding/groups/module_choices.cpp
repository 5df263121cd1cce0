// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/groups/module_choices.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/sharding/groups/module_kind.h"

#include <algorithm>
#include <utility>

namespace tessera::sharding {

namespace {

using torch::nn::Module;

constexpr const char* kRoot = "root";

/// Returns a path and those of the modules around it: "a.b.c", "a.b", "a",
/// "root".
std::vector<std::string> with_ancestors(std::string path) {
  std::vector<std::string> paths;
  while (path != kRoot) {
    paths.push_back(path);
    const size_t dot = path.rfind('.');
    path = dot == std::string::npos ? kRoot : path.substr(0, dot);
  }
  paths.emplace_back(kRoot);
  return paths;
}

bool chooses_for_groups(const ModuleOptions& options) {
  return options.zero_stage || options.reshard_after_forward;
}

} // namespace

ModuleChoices::ModuleChoices(
    const Module& root,
    std::vector<ModuleRule> rules,
    const OtherNames& other_names)
    : rules_(std::move(rules)), patterns_("sharding.modules") {
  check_module_rules(rules_);
  for (const ModuleRule& rule : rules_) {
    rule.type.empty() ? patterns_.add(rule.path)
                      : patterns_.add_type(rule.type);
  }
  const auto modules = root.named_modules("", /*include_self=*/false);
  const OtherNames module_names =
      rules_.empty() ? OtherNames()
                     : runtime::other_module_names(modules.keys(), other_names);
  const auto is_for = [&](size_t rule,
                          const std::string& name,
                          const OtherNames& others) {
    bool found = false;
    for (const std::string& one : runtime::with_other_names({name}, others)) {
      found = patterns_.matches(rule, one) || found;
    }
    return found;
  };
  std::vector<bool> finds_modules(rules_.size());
  const auto add = [&](const std::string& path, const Module& module) {
    Choice choice{{}, configured_options(module)};
    bool is_group = choice.local && choice.local->group;
    for (size_t i = 0; i < rules_.size(); ++i) {
      const bool matches = rules_[i].type.empty()
                               ? is_for(i, path, module_names)
                               : patterns_.matches(i, kind_of(module).type);
      if (!matches) {
        continue;
      }
      choice.rules.push_back(i);
      if (&module != &root) {
        finds_modules[i] = true;
        names_groups_ = names_groups_ || rules_[i].options.group;
        is_group = is_group || rules_[i].options.group;
      }
    }
    if (is_group) {
      groups_.insert(&module);
    }
    if (choice.local || !choice.rules.empty()) {
      choices_[path] = std::move(choice);
    }
  };
  add(kRoot, root);
  for (const auto& item : modules) {
    add(item.key(), *item.value());
  }
  for (const auto& item : root.named_parameters()) {
    for (size_t i = 0; i < rules_.size(); ++i) {
      if (rules_[i].type.empty() && is_for(i, item.key(), other_names)) {
        choices_[item.key()].rules.push_back(i);
        if (rules_[i].options.group && !finds_modules[i]) {
          single_groups_.insert(item.key());
        }
      }
    }
  }
}

bool ModuleChoices::ignores(const std::string& parameter) const {
  const auto test = [](const auto& options) { return options.ignored; };
  return find(parameter, test) != nullptr;
}

bool ModuleChoices::keeps_float32(const std::string& parameter) const {
  const auto test = [](const auto& options) { return options.float32; };
  return find(parameter, test) != nullptr;
}

bool ModuleChoices::is_sent_exactly(const std::string& parameter) const {
  const auto test = [](const auto& options) { return options.full_precision; };
  return find(parameter, test) != nullptr;
}

std::optional<FrozenWeights> ModuleChoices::frozen_weights(
    const std::string& parameter) const {
  const ModuleOptions* found = find(parameter, [](const auto& options) {
    return options.frozen_weights.has_value();
  });
  return found != nullptr ? found->frozen_weights : std::nullopt;
}

std::optional<int> ModuleChoices::zero_stage(const std::string& group) const {
  const ModuleOptions* found = find(group, [](const auto& options) {
    return options.zero_stage.has_value();
  });
  return found != nullptr ? found->zero_stage : std::nullopt;
}

std::optional<bool> ModuleChoices::reshard_after_forward(
    const std::string& group) const {
  const ModuleOptions* found = find(group, [](const auto& options) {
    return options.reshard_after_forward.has_value();
  });
  return found != nullptr ? found->reshard_after_forward : std::nullopt;
}

const ModuleOptions* ModuleChoices::find(
    const std::string& path,
    const Test& test) const {
  if (choices_.empty()) {
    return nullptr;
  }
  std::optional<size_t> first;
  const ModuleOptions* local = nullptr;
  for (const std::string& around : with_ancestors(path)) {
    const auto found = choices_.find(around);
    if (found == choices_.end()) {
      continue;
    }
    const auto& [rules, configured] = found->second;
    for (const size_t rule : rules) {
      // A rule for the root is one for its own group.
      if (test(rules_[rule].options) && (around != kRoot || path == kRoot)) {
        first = std::min(first.value_or(rule), rule);
      }
    }
    if (local == nullptr && configured && test(*configured)) {
      local = &*configured;
    }
  }
  return first ? &rules_[*first].options : local;
}

void ModuleChoices::check_all_used(
    const std::vector<std::string>& groups) const {
  std::vector<std::string> all;
  for (const std::string& group : groups) {
    const auto paths = with_ancestors(group);
    all.insert(all.end(), paths.begin(), paths.end());
  }
  const std::set<std::string> around_groups(all.begin(), all.end());
  std::vector<bool> used(rules_.size());
  for (const auto& [path, choice] : choices_) {
    const bool is_used = around_groups.contains(path);
    for (const size_t rule : choice.rules) {
      used[rule] = used[rule] || is_used;
    }
    // Rules that name the groups may do so around a module.
    TESSERA_CHECK(
        is_used || names_groups_ || !choice.local ||
            !chooses_for_groups(*choice.local),
        "configure: '{}' has a zero_stage or reshard_after_forward, but is no group and contains none; set ModuleOptions::group too.",
        path);
  }
  const auto matches = patterns_.uses();
  for (size_t i = 0; i < rules_.size(); ++i) {
    const std::string& text = rules_[i].path + rules_[i].type;
    TESSERA_CHECK(
        used[i] || !matches.at(text) || !chooses_for_groups(rules_[i].options),
        "sharding.modules: '{}' has a zero_stage or reshard_after_forward, but matches no group and no module around one{}; set group too.",
        text,
        runtime::nearest_names_hint(text, all));
  }
}

} // namespace tessera::sharding
