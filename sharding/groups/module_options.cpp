// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/groups/module_options.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/name_patterns.h"
#include "tessera/runtime/core/option_fields.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace tessera {

namespace {

using torch::nn::Module;

/// The options of modules that do not derive from ConfiguredModule. A module's
/// address may be used again: what is found counts only while it lives.
struct ConfiguredModules {
  struct Entry {
    std::weak_ptr<const Module> module;
    ModuleOptions options;
  };
  std::mutex mutex;
  std::unordered_map<const Module*, Entry> entries;

  static ConfiguredModules& get() {
    static ConfiguredModules all;
    return all;
  }
};

} // namespace

void configure(const Module& module, const ModuleOptions& options) {
  const int zero_stage = options.zero_stage.value_or(1);
  TESSERA_CHECK(
      zero_stage >= 1 && zero_stage <= 3,
      "configure: zero_stage of a {} is {}; it must be 1, 2 or 3.",
      module.name(),
      zero_stage);
  if (const auto* local = dynamic_cast<const ConfiguredModule*>(&module)) {
    // What is chosen for a module is no part of its state.
    const_cast<ConfiguredModule*>(local)->module_options = options; // NOLINT
    return;
  }
  const std::weak_ptr<const Module> weak = module.weak_from_this();
  TESSERA_CHECK(
      !weak.expired(),
      "configure: the {} is not owned by a shared_ptr; configure submodules, or make it with std::make_shared or a ModuleHolder.",
      module.name());
  ConfiguredModules& all = ConfiguredModules::get();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.entries, [](const auto& entry) {
    return entry.second.module.expired();
  });
  all.entries[&module] = {weak, options};
}

std::optional<ModuleOptions> configured_options(const Module& module) {
  if (const auto* local = dynamic_cast<const ConfiguredModule*>(&module)) {
    return local->module_options;
  }
  ConfiguredModules& all = ConfiguredModules::get();
  const std::lock_guard lock(all.mutex);
  const auto found = all.entries.find(&module);
  return found == all.entries.end() || found->second.module.expired()
             ? std::nullopt
             : std::optional(found->second.options);
}

void visit_fields(runtime::OptionFields& fields, ModuleRule& rule) {
  fields.field(
      "path",
      rule.path,
      "regular expression for the whole path of a module or parameter, as the model or its checkpoint calls it; `root`: the group of what is in no other");
  fields.field("type", rule.type, "instead of `path`: C++ type of modules");
  fields.field(
      "group",
      rule.options.group,
      "each of these modules forms a group; such rules replace the default one, by which repeated blocks do. Parameters, if the path is that of no module, form groups besides");
  std::optional<int64_t> zero_stage = rule.options.zero_stage;
  fields.field(
      "zero_stage",
      zero_stage,
      {.min = 1, .max = 3},
      "in place of `sharding.zero_stage`, for the groups that match or are in a module that does");
  rule.options.zero_stage.reset();
  if (zero_stage) {
    rule.options.zero_stage = static_cast<int>(*zero_stage);
  }
  fields.field(
      "reshard_after_forward",
      rule.options.reshard_after_forward,
      "whether these groups are resharded between forward and backward, whatever their ZeRO stage");
  fields.field(
      "float32",
      rule.options.float32,
      "stay in float32, with everything in them");
  fields.field(
      "full_precision",
      rule.options.full_precision,
      "are sent as they are, whatever `sharding.communication`, with everything in them");
  std::vector<std::pair<std::string, std::optional<FrozenWeights>>> frozen;
  for (const auto& [name, weights] : sharding::all_frozen_weights()) {
    frozen.emplace_back(name, weights);
  }
  fields.choice(
      "frozen_weights",
      rule.options.frozen_weights,
      frozen,
      "in what weights that are not trained rest, in place of `precision.frozen_weights`, all that have at least two dimensions");
  fields.field(
      "ignored",
      rule.options.ignored,
      "are not sharded, averaged or trained, with everything in them");
}

void check_module_rules(const std::vector<ModuleRule>& rules) {
  runtime::NamePatterns patterns("sharding.modules");
  for (const ModuleRule& rule : rules) {
    TESSERA_CHECK(
        rule.path.empty() != rule.type.empty(),
        "sharding.modules: a rule has {}; give it a path or a type.",
        rule.path.empty()
            ? "neither path nor type"
            : "path '" + rule.path + "' and type '" + rule.type + "'");
    if (rule.type.empty()) {
      patterns.add(rule.path);
    }
  }
}

} // namespace tessera
