// SPDX-License-Identifier: Apache-2.0
#pragma once
// foreign_keys() maps configuration keys of other trainers to those of `tessera
// train`.

#include "tessera/runtime/core/config.h"

#include <span>

namespace tessera::zoo {

/// Keys of transformers, PEFT, DeepSpeed and PyTorch, with their names here.
std::span<const runtime::ForeignKey> foreign_keys();

} // namespace tessera::zoo
