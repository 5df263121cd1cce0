// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LoraTargets` applies PEFT's rules that select a model's modules by name.

#include "tessera/zoo/adapters/lora_config.h"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::zoo {

/// All names are module names in transformers' checkpoints.
class LoraTargets {
 public:
  /// @param architecture transformers' class, which decides what "all-linear"
  ///     excludes and, if the configuration does not say, the task.
  /// @throws tessera::Error as check(), and on a malformed expression, quoting
  ///     it.
  LoraTargets(const LoraConfig& config, const std::string& architecture);

  /// Whether the module gets an adapter, if it is a linear layer.
  bool has(const std::string& module) const;

  /// Whether targets are selected by "all-linear". Otherwise a selected module
  /// that cannot have an adapter is an error.
  bool is_all_linear() const {
    return all_linear_;
  }

  /// The entry of target_modules that selects a language model head, whether or
  /// not this model or this pipeline stage has one; "" if there is none. Models
  /// multiply by the weight of that head directly, and it may be the embedding,
  /// so an adapter would have no effect.
  std::string named_output() const;

  /// Whether the module, or a module that contains it, is trained and saved
  /// whole.
  bool is_saved(std::string_view module) const;

  int64_t rank_of(const std::string& module) const;
  double scaling_of(const std::string& module) const;

  /// The given configuration with the task and the modules that it saves filled
  /// in.
  const LoraConfig& config() const {
    return config_;
  }

 private:
  using Matches = std::function<bool(const std::string&)>;
  /// Returns the number of the layer that a module is in; "" if it is in none,
  /// nullopt if the name does not match.
  using NumberOf =
      std::function<std::optional<std::string>(const std::string&)>;
  static Matches matcher(const ModuleNames& modules, const char* option);

  /// Whether layers_to_transform has the number of the module's layer.
  bool is_in_layers(const std::string& module) const;

  LoraConfig config_;
  bool all_linear_ = false;
  Matches is_target_;
  Matches is_excluded_;
  std::vector<NumberOf> layer_numbers_; ///< by layers_pattern; else one
  std::vector<std::pair<Matches, int64_t>> ranks_;
  std::vector<std::pair<Matches, double>> alphas_;
};

} // namespace tessera::zoo
