// SPDX-License-Identifier: Apache-2.0
#pragma once
// What ModelCenter calls the parameters of transformer layers.

#include "tessera/zoo/models/name_table.h"

#include <string>

namespace tessera::zoo {

/// Adds its layers and the norm behind them to `table.base`.
/// @param theirs "encoder", or "decoder", which has cross-attention.
/// @param ours a RelativeStack's name.
void add_model_center_stack(
    NameTable& table,
    const std::string& theirs,
    const std::string& ours);

} // namespace tessera::zoo
