// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RegisteredParameters` finds parameters that a module got, or lost, after it
// was wrapped: the engine has those of before.

#include "tessera/runtime/core/other_names.h"
#include "tessera/sharding/groups/module_options.h"

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace tessera::engine {

/// Logs a warning for each layer of LibTorch whose `weight` was assigned, as in
/// `head->weight = embedding->weight`: what is registered under its name is
/// another tensor, which is not trained, and which files contain.
void warn_of_assigned_weights(const torch::nn::Module& module);

class RegisteredParameters {
 public:
  /// Remembers the parameters that `module` has, under all of their names.
  explicit RegisteredParameters(const torch::nn::Module& module);

  /// Compares them with those that it has now. While they are the same, this
  /// only compares addresses. Ignored parameters may change. Not collective.
  /// @param rules of ShardingOptions::modules, which say what is ignored.
  /// @param other_names EngineOptions::other_names.
  /// @throws tessera::Error naming a parameter that was added or removed, or
  ///   that has taken the place of another one.
  void check(
      const torch::nn::Module& module,
      const std::vector<ModuleRule>& rules,
      const OtherNames& other_names);

 private:
  using Named = torch::OrderedDict<std::string, at::Tensor>;

  bool are_those_of(const torch::nn::Module& module) const;

  Named parameters_; ///< in the order of Module::apply()
};

} // namespace tessera::engine
