// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OptimizerRules` resolves OptimizerOptions into the hyperparameters of each
// parameter.

#include "tessera/engine/optim/optimizer_options.h"
#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/core/name_patterns.h"
#include "tessera/runtime/core/other_names.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::engine {

/// The hyperparameters of one parameter.
struct ParameterSettings {
  /// All that patterns of the optimizer match: the names in the module, and
  /// EngineOptions::other_names of them.
  std::vector<std::string> names;
  double lr_scale = 1;
  double weight_decay = 0;
  int64_t frozen_steps = 0;
  UpdateRule rule = AdamWOptions{};
  /// 0: OptimizerOptions::rule; else 1 + index of the ParameterRule that set
  /// it.
  size_t rule_origin = 0;
  /// Of `rule`: parameters with the same number have the same options.
  size_t rule_version = 0;
};

/// Resolves OptimizerOptions for each parameter, with the patterns compiled
/// once.
class OptimizerRules {
 public:
  /// Not explicit: it holds nothing but the options.
  /// @param other_names EngineOptions::other_names.
  /// @throws tessera::Error on a pattern that is not a regular expression.
  OptimizerRules( // NOLINT(*-explicit-*)
      OptimizerOptions options,
      OtherNames other_names = {});

  const OptimizerOptions& options() const {
    return options_;
  }

  /// @throws tessera::Error on a pattern that matches no parameter of `module`,
  ///   naming the nearest.
  void check_all_used(const torch::nn::Module& module) const;
  /// The same of the layers of all pipeline stages. Collective over `job`.
  /// @throws tessera::Error on all ranks.
  void check_all_used(const torch::nn::Module& module, Communicator& job) const;

  /// Whether a rule of OptimizerOptions::parameters is for a parameter.
  /// @param names under which it is registered.
  bool is_for(size_t rule, const std::vector<std::string>& names) const;

  /// @param names all names under which the parameter is registered.
  ParameterSettings settings_for(const std::vector<std::string>& names) const;

 private:
  runtime::NamePatterns tested_on(const torch::nn::Module& module) const;
  std::vector<std::string> all_names(const torch::nn::Module& module) const;

  OptimizerOptions options_;
  OtherNames other_names_;
  std::vector<runtime::NamePattern> patterns_; ///< of options_.parameters
};

} // namespace tessera::engine
