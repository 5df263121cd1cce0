// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LoraRecord` stores in a model which adapters were added to it; lora_table()
// names the parameters in the adapter's files.

#include "tessera/zoo/adapters/lora_targets.h"
#include "tessera/zoo/formats/weight_folder.h"
#include "tessera/zoo/models/model.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

/// What names in PEFT's files begin with, before those of the base model.
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";

/// A module without parameters, registered in the model as kName.
class LoraRecord : public torch::nn::Module {
 public:
  static constexpr const char* kName = "lora";

  explicit LoraRecord(LoraTargets its_targets)
      : torch::nn::Module("LoraRecord"), targets(std::move(its_targets)) {}

  /// @throws tessera::Error if the model has no adapters.
  static const LoraRecord& of(const Model& model);

  LoraTargets targets;
  std::set<std::string> were_trainable; ///< parameters of the base model
};

/// The name table of an adapter's files.
/// @param sizes of the parameters of a model with adapters, or of the whole
///     model that it is a pipeline stage of.
NameTable lora_table(
    const Model& model,
    const LoraTargets& targets,
    const ParameterSizes& sizes);

/// apply_lora() without with_new_modules().
std::vector<std::string> apply_lora_as_given(
    Model& model,
    const LoraConfig& config,
    uint64_t seed = 0);

/// The path of the module that a parameter belongs to.
std::string module_of(const std::string& parameter);

} // namespace tessera::zoo
