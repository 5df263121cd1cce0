// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GroupPolicy` determines how parameters are divided into groups;
// `ResidencyHints` and `ModuleContainer` are base classes with which a module
// has its own say.

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

/// @param path of the module in the wrapped module, e.g. "encoder.layer.0".
using ModulePredicate =
    std::function<bool(const std::string& path, const torch::nn::Module&)>;

/// Parameters that the engine ignores: they are not sharded, paged, averaged
/// over the ranks or optimized. They stay ordinary tensors of the caller, who
/// may train them with a separate optimizer.
struct IgnoredParameters {
  /// Regular expressions over the whole path of a parameter, or of a module
  /// with everything in it.
  std::vector<std::string> paths;
  /// Selects modules, with everything in them.
  ModulePredicate modules;
};

/// Whether groups are resharded between forward and backward.
struct ReshardRule {
  /// Regular expression that matches the whole path of a group's module or of a
  /// module that contains it; "root" matches the root group.
  std::string path;
  bool reshard_after_forward = true;
};

/// Paths are those of named_modules() and named_parameters(), such as
/// "encoder.layer.3". Expressions are ECMAScript and match a whole path. One
/// that matches nothing is an error that names the nearest paths.
///
/// Sizes count the elements of whole parameters, whichever part of them a
/// tensor-parallel rank has, so that all ranks have the same groups.
struct GroupPolicy {
  /// Smaller modules are merged until they reach this size; larger ones keep a
  /// group of their own. Does not apply to what the rules below name.
  int64_t min_group_numel = 100'000;
  /// Consecutive groups are merged while their sum is at most this; 0: they are
  /// not merged.
  int64_t max_group_numel = 0;

  /// Modules that are blocks, each a group, in place of the default rule: by
  /// C++ type ("BertLayer", "tessera::BertLayerImpl"), ...
  std::vector<std::string> block_types;
  /// ... by path ("encoder\\.layer\\.\\d+"), ...
  std::vector<std::string> block_paths;
  /// ... or by predicate. A block inside a block is a group too; the outer
  /// block keeps the remaining parameters.
  ModulePredicate is_block;

  /// If set, embeddings, and linear layers with as many outputs as an embedding
  /// has rows, are groups of their own and are not merged, wherever they are,
  /// if their weight has at least min_group_numel elements.
  bool vocabulary_apart = false;

  /// Parameters, by any of their names, that are groups of their own and are
  /// not merged.
  std::vector<std::string> parameters_apart;

  /// Parameters that the engine ignores.
  IgnoredParameters ignored;

  /// The first rule that matches a group applies; groups that match none follow
  /// the residency plan of the engine.
  std::vector<ReshardRule> reshard_after_forward;
};

/// A module that also derives from this is a group of its own, whatever its
/// type, and its hints override the engine's options. Hints of modules inside
/// it are ignored.
struct ResidencyHints {
  virtual ~ResidencyHints() = default;

  /// ZeRO stage of the group: 1 (parameters and gradients whole), 2 (gradients
  /// sharded) or 3 (parameters sharded as well). If unset, the engine decides.
  std::optional<int> zero_stage;

 protected:
  ResidencyHints() = default;
  ResidencyHints(const ResidencyHints&) = default;
  ResidencyHints& operator=(const ResidencyHints&) = default;
};

/// A module that also derives from this is a mere list of modules, like
/// torch::nn::ModuleList: they may be groups, but it is not.
struct ModuleContainer {
  virtual ~ModuleContainer() = default;

 protected:
  ModuleContainer() = default;
  ModuleContainer(const ModuleContainer&) = default;
  ModuleContainer& operator=(const ModuleContainer&) = default;
};

void visit_fields(runtime::OptionFields& fields, GroupPolicy& options);

/// @throws tessera::Error on values that are invalid for any module: negative
///   sizes, a maximum below the minimum, malformed expressions.
void check_group_policy(const GroupPolicy& policy);

} // namespace tessera
