// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LoraOptions` holds the configuration section `model.lora`.

#include "tessera/runtime/core/config.h"
#include "tessera/zoo/adapters/lora_config.h"

#include <optional>

namespace tessera::zoo {

struct LoraOptions {
  zoo::LoraConfig adapter;
  /// Also exports the model with the adapter merged into it.
  bool merge = false;
};

/// Reads `lora` from the section `model`.
/// @return nullopt if it is absent: the whole model is trained.
/// @throws Error naming file, path, value and what was expected.
std::optional<LoraOptions> read_lora_options(
    const runtime::ConfigReader& model);

} // namespace tessera::zoo
