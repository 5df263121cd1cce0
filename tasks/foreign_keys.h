// SPDX-License-Identifier: Apache-2.0
#pragma once
// foreign_keys() maps configuration keys of other trainers, and of older
// versions, to those of `tessera train`.

#include "tessera/runtime/core/config.h"

#include <span>

namespace tessera::tasks {

/// Keys of transformers, PEFT, DeepSpeed and PyTorch, and the former ones of
/// Tessera by their paths, with their names here.
std::span<const runtime::ForeignKey> foreign_keys();

} // namespace tessera::tasks
