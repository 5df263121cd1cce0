// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LoraOptions` holds the configuration section `model.lora`.

#include "tessera/runtime/core/option_fields.h"
#include "tessera/zoo/adapters/lora_config.h"

namespace tessera::zoo {

struct LoraOptions {
  zoo::LoraConfig adapter;
  /// Also exports the model with the adapter merged into it.
  bool merge = false;
};

void visit_fields(runtime::OptionFields& fields, LoraOptions& options);

} // namespace tessera::zoo
