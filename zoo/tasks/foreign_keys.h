// SPDX-License-Identifier: Apache-2.0
#pragma once
// What other trainers call the keys of a configuration of `tessera train`.

#include "tessera/runtime/core/config.h"

#include <span>

namespace tessera::zoo {

/// Keys of transformers, PEFT, DeepSpeed and PyTorch with their names here.
std::span<const ForeignKey> foreign_keys();

} // namespace tessera::zoo
