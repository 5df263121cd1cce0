// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ModuleChoices` are the ModuleOptions of all modules and parameters of a
// model, by rules and by calls of configure().

#include "tessera/runtime/core/name_patterns.h"
#include "tessera/runtime/core/other_names.h"
#include "tessera/sharding/groups/module_options.h"

#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tessera::sharding {

class ModuleChoices {
 public:
  /// @param other_names of parameters: rules match them, too, and those of
  ///   modules that they imply (runtime::other_module_names()).
  /// @throws tessera::Error as check_module_rules().
  explicit ModuleChoices(
      const torch::nn::Module& root,
      std::vector<ModuleRule> rules = {},
      const OtherNames& other_names = {});

  /// @throws tessera::Error on a rule that matches nothing, with the nearest
  ///   paths.
  void check_all_match() const {
    patterns_.check_all_used();
  }
  /// The rules, tested on all paths and types of the module.
  const runtime::NamePatterns& patterns() const {
    return patterns_;
  }

  /// Whether a module around the parameter, or the parameter, is ignored.
  bool ignores(const std::string& parameter) const;
  bool keeps_float32(const std::string& parameter) const;
  /// Whether it is sent as it is, see ModuleOptions::full_precision.
  bool is_sent_exactly(const std::string& parameter) const;

  /// Of the parameter, see ModuleOptions::frozen_weights.
  std::optional<FrozenWeights> frozen_weights(
      const std::string& parameter) const;

  /// Whether rules name modules that are groups, in place of the default ones.
  bool names_groups() const {
    return names_groups_;
  }
  /// Whether the module is a group because it was chosen to be.
  bool is_group(const torch::nn::Module& module) const {
    return groups_.contains(&module);
  }
  /// Whether the parameter is a group because a rule says so.
  bool is_group(const std::string& parameter) const {
    return single_groups_.contains(parameter);
  }

  /// Of the group of the module or parameter with that path.
  std::optional<int> zero_stage(const std::string& group) const;
  std::optional<bool> reshard_after_forward(const std::string& group) const;

  /// @param groups paths of all of them.
  /// @throws tessera::Error on a choice for groups that matches something, and
  ///   holds for none of them.
  void check_all_used(const std::vector<std::string>& groups) const;

 private:
  using Test = std::function<bool(const ModuleOptions&)>;

  /// What was chosen for one path.
  struct Choice {
    std::vector<size_t> rules; ///< that match it, in order
    std::optional<ModuleOptions> local; ///< by configure()
  };

  /// What holds for a path, of the options that `test` accepts: those of the
  /// first rule, else of the nearest module around it; null if there are none.
  const ModuleOptions* find(const std::string& path, const Test& test) const;

  std::vector<ModuleRule> rules_;
  runtime::NamePatterns patterns_; ///< of rules_
  std::map<std::string, Choice> choices_; ///< by path
  std::set<const torch::nn::Module*> groups_;
  std::set<std::string> single_groups_; ///< parameters
  bool names_groups_ = false;
};

} // namespace tessera::sharding
