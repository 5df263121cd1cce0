// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ModuleOptions` are what can be chosen for one module of a model, by a call
// (`configure()`) or by name (`ModuleRule`).

#include "tessera/sharding/groups/frozen_weights.h"

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

/// Choices that are not set follow ShardingOptions and PrecisionPolicy. They
/// apply to everything in the module. Recomputation is none of them: LibTorch
/// calls the forward() of a module's type directly, without hooks, so the type
/// itself has to be a CheckpointBlock.
struct ModuleOptions {
  /// The module is a group (page) of its own; a module in it that is one too
  /// keeps its own parameters. It is not merged with smaller ones.
  bool group = false;
  /// ZeRO stage of the groups that the module is or contains: 1 (parameters
  /// and gradients whole), 2 (gradients sharded) or 3 (parameters sharded as
  /// well).
  std::optional<int> zero_stage;
  /// Whether they are resharded between forward and backward, whatever their
  /// ZeRO stage.
  std::optional<bool> reshard_after_forward;
  /// Parameters stay in float32 (if PrecisionPolicy::parameters is lower), as
  /// do the module's results.
  bool float32 = false;
  /// Parameters and their gradients are sent as they are, whatever
  /// ShardingOptions::communication.
  bool full_precision = false;
  /// In what those of at least two dimensions rest that are not trained, in
  /// place of PrecisionPolicy::frozen_weights.
  std::optional<FrozenWeights> frozen_weights;
  /// Parameters are not sharded, paged, averaged over the ranks or optimized.
  /// They stay ordinary tensors of the caller, who may train them with a
  /// separate optimizer.
  bool ignored = false;
};

/// ModuleOptions for modules by name. Paths are those of named_modules() and
/// named_parameters(), such as "encoder.layer.3".
struct ModuleRule {
  /// Regular expression (ECMAScript) that matches a whole path of a module, or
  /// of a parameter, or one of EngineOptions::other_names. "root" matches the
  /// group of what is in no other.
  std::string path;
  /// Instead of a path: C++ type of modules ("BertLayer",
  /// "tessera::BertLayerImpl").
  std::string type;
  ModuleOptions options;
};

/// Chooses options for `module`, for every engine that wraps a model with it
/// from now on; replaces what an earlier call chose. A ModuleRule that matches
/// the module too comes first. Copies of the module do not have them.
/// @throws tessera::Error if `module` is not owned by a shared_ptr, as all
///   submodules are, or on a ZeRO stage that does not exist.
/// Options of other modules than ConfiguredModules are in a table of the
/// process; an entry ends with its module.
/// Thread-safe, not collective: all ranks have to choose the same.
void configure(const torch::nn::Module& module, const ModuleOptions& options);

/// A module that also derives from this has options of its own, and is a block:
/// where no ModuleRule names groups, it is a group whatever its type.
struct ConfiguredModule {
  virtual ~ConfiguredModule() = default;
  ModuleOptions module_options;

 protected:
  ConfiguredModule() = default;
  ConfiguredModule(const ConfiguredModule&) = default;
  ConfiguredModule& operator=(const ConfiguredModule&) = default;
};

/// What the module has been configured with, if it has been.
std::optional<ModuleOptions> configured_options(
    const torch::nn::Module& module);

void visit_fields(runtime::OptionFields& fields, ModuleRule& rule);

/// @throws tessera::Error on malformed or empty rules.
void check_module_rules(const std::vector<ModuleRule>& rules);

} // namespace tessera
