// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which modules of a model an adapter is about: PEFT's rules for their names.

#include "tessera/zoo/adapters/lora_config.h"

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::zoo {

/// All names are those of modules in transformers' checkpoints.
class LoraTargets {
 public:
  /// @param architecture transformers' class, which decides what "all-linear"
  ///     leaves out and, if the configuration does not say, the task.
  /// @throws tessera::Error on a malformed expression, quoting it.
  LoraTargets(const LoraConfig& config, const std::string& architecture);

  /// Whether the module gets an adapter, if it is a linear layer.
  bool has(const std::string& module) const;

  /// Whether the target has been named by itself, so that a module that can
  /// have no adapter is an error.
  bool is_all_linear() const {
    return all_linear_;
  }

  /// What of target_modules names a language model's head, whether this model,
  /// or this stage of it, has one or not; "" for nothing. Models multiply by
  /// the weight of such a head themselves, and it may be the embedding: an
  /// adapter would be left out.
  std::string named_output() const;

  /// Whether the module, or one that it is in, is trained and saved whole.
  bool is_saved(std::string_view module) const;

  int64_t rank_of(const std::string& module) const;
  double scaling_of(const std::string& module) const;

  /// As given, with the task and the modules that it saves filled in.
  const LoraConfig& config() const {
    return config_;
  }

 private:
  using Matches = std::function<bool(const std::string&)>;
  static Matches matcher(const ModuleNames& modules, const char* option);

  LoraConfig config_;
  bool all_linear_ = false;
  Matches is_target_;
  Matches is_excluded_;
  std::vector<std::pair<Matches, int64_t>> ranks_;
  std::vector<std::pair<Matches, double>> alphas_;
};

} // namespace tessera::zoo
