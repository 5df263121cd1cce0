// SPDX-License-Identifier: Apache-2.0
#pragma once
// The keys of `model.lora` in a configuration.

#include "tessera/runtime/core/config.h"
#include "tessera/zoo/adapters/lora_config.h"

#include <optional>

namespace tessera::zoo {

struct LoraOptions {
  zoo::LoraConfig adapter;
  /// The model with the adapter merged into it is exported, too.
  bool merge = false;
};

/// @param model the section `model`.
/// @return nothing without `lora`: all of the model is trained.
/// @throws Error naming file, path, value and what was expected.
std::optional<LoraOptions> read_lora_options(const ConfigReader& model);

} // namespace tessera::zoo
