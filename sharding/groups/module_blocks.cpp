// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/groups/module_blocks.h"

#include "tessera/sharding/groups/module_kind.h"
#include "tessera/sharding/tensor_parallel/tensor_specs.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace tessera::sharding {

namespace {

using torch::nn::Module;
using Modules = std::set<const Module*>;

std::string join(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

bool is_container(const Module& module) {
  return kind_of(module).role == ModuleRole::kContainer;
}

bool has_parameters(const Module& module) {
  return !module.parameters(/*recurse=*/true).empty();
}

/// Returns whether a module has submodules and is not a mere list of them, as
/// is typical of blocks.
bool is_composite(const Module& module) {
  return !module.children().empty() && !is_container(module) &&
         has_parameters(module);
}

/// The default rule: repeated composite modules are blocks; there are no blocks
/// inside blocks.
void add_repeated_blocks(const Module& module, Modules& blocks) {
  std::map<std::string, std::vector<const Module*>> by_type;
  for (const auto& child : module.children()) {
    if (dynamic_cast<const ConfiguredModule*>(child.get()) != nullptr) {
      blocks.insert(child.get());
    } else if (is_composite(*child)) {
      by_type[kind_of(*child).type].push_back(child.get());
    }
  }
  for (const auto& [type, members] : by_type) {
    if (members.size() > 1 || is_container(module)) {
      blocks.insert(members.begin(), members.end());
    }
  }
  for (const auto& child : module.children()) {
    if (!blocks.count(child.get())) {
      add_repeated_blocks(*child, blocks);
    }
  }
}

/// Calls `visit` for every module under `module`, except `module` itself.
template <typename Visit>
void for_each_submodule(
    const Module& module,
    const std::string& path,
    const Visit& visit) {
  for (const auto& child : module.named_children()) {
    const std::string child_path = join(path, child.key());
    visit(child_path, *child.value());
    for_each_submodule(*child.value(), child_path, visit);
  }
}

/// Returns large embeddings and the linear layers that look like their output
/// heads, by the sizes of their whole weights.
Modules vocabulary_modules(const Module& module, int64_t min_numel) {
  Modules apart;
  std::set<int64_t> vocabularies;
  const TensorSpecs specs = specs_in(module);
  // Of the weight of a module with this role; empty for other modules.
  const auto full_sizes = [&](const Module& part, ModuleRole role) {
    const auto parameters = part.parameters(/*recurse=*/false);
    return kind_of(part).role == role && !parameters.empty()
               ? spec_of(parameters[0], specs).sizes
               : std::vector<int64_t>();
  };
  for_each_submodule(
      module, "", [&](const std::string& /*path*/, const Module& part) {
        const auto sizes = full_sizes(part, ModuleRole::kEmbedding);
        if (!sizes.empty() && c10::multiply_integers(sizes) >= min_numel) {
          vocabularies.insert(sizes[0]);
          apart.insert(&part);
        }
      });
  for_each_submodule(
      module, "", [&](const std::string& /*path*/, const Module& part) {
        const auto sizes = full_sizes(part, ModuleRole::kLinear);
        if (!sizes.empty() && c10::multiply_integers(sizes) >= min_numel &&
            vocabularies.count(sizes[0])) {
          apart.insert(&part);
        }
      });
  return apart;
}

class UnitFinder {
 public:
  UnitFinder(
      const Module& module,
      const GroupPolicy& policy,
      const ModuleChoices& choices)
      : choices_(choices) {
    if (!choices.names_groups()) {
      add_repeated_blocks(module, blocks_);
    }
    for_each_submodule(
        module, "", [&](const std::string& /*path*/, const Module& part) {
          if (choices.is_group(part)) {
            blocks_.insert(&part);
          }
        });
    if (policy.vocabulary_apart) {
      apart_ = vocabulary_modules(module, policy.min_group_numel);
    }
  }

  std::vector<ModuleUnit> find(const Module& module) {
    add_around_blocks(module, "");
    return std::move(units_);
  }

 private:
  bool is_unit(const Module& module) const {
    return blocks_.count(&module) || apart_.count(&module);
  }

  bool contains_blocks(const Module& module) const {
    const auto children = module.children();
    return std::any_of(
        children.begin(), children.end(), [this](const auto& child) {
          return blocks_.count(child.get()) || contains_blocks(*child);
        });
  }

  /// Adds a module that contains blocks: its own parameters, then each child.
  void add_around_blocks(const Module& module, const std::string& path) {
    add(module, path, module.parameters(/*recurse=*/false));
    for (const auto& child : module.named_children()) {
      const std::string child_path = join(path, child.key());
      const Module& part = *child.value();
      if (!is_unit(part) && (is_container(part) || contains_blocks(part))) {
        add_around_blocks(part, child_path);
      } else {
        add_full(part, child_path);
      }
    }
  }

  /// Adds a module that is a piece, followed by the pieces inside it.
  void add_full(const Module& module, const std::string& path) {
    std::vector<at::Tensor> local;
    std::vector<std::pair<std::string, const Module*>> inner;
    take_local(module, path, local, inner);
    add(module, path, local);
    for (const auto& [inner_path, part] : inner) {
      add_full(*part, inner_path);
    }
  }

  void take_local(
      const Module& module,
      const std::string& path,
      std::vector<at::Tensor>& local,
      std::vector<std::pair<std::string, const Module*>>& inner) const {
    for (const at::Tensor& tensor : module.parameters(/*recurse=*/false)) {
      local.push_back(tensor);
    }
    for (const auto& child : module.named_children()) {
      const std::string child_path = join(path, child.key());
      if (is_unit(*child.value())) {
        inner.emplace_back(child_path, child.value().get());
      } else {
        take_local(*child.value(), child_path, local, inner);
      }
    }
  }

  void add(
      const Module& module,
      const std::string& path,
      const std::vector<at::Tensor>& parameters) {
    ModuleUnit unit;
    unit.path = path;
    for (const at::Tensor& tensor : parameters) {
      unit.parameters.push_back(tensor.unsafeGetTensorImpl());
    }
    unit.is_named = choices_.is_group(module);
    unit.is_apart = apart_.count(&module) > 0;
    if (!unit.parameters.empty()) {
      units_.push_back(std::move(unit));
    }
  }

  const ModuleChoices& choices_;
  Modules blocks_;
  Modules apart_;
  std::vector<ModuleUnit> units_;
};

} // namespace

std::vector<ModuleUnit> find_units(
    const Module& module,
    const GroupPolicy& policy,
    const ModuleChoices& choices) {
  return UnitFinder(module, policy, choices).find(module);
}

} // namespace tessera::sharding
