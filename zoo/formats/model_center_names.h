// SPDX-License-Identifier: Apache-2.0
#pragma once
// add_model_center_stack() adds ModelCenter's names of transformer layers.

#include "tessera/zoo/formats/name_table.h"

#include <string>

namespace tessera::zoo {

/// Adds the layers and the norm after them to `table.base`.
/// @param theirs "encoder", or "decoder", which has cross-attention.
/// @param ours the name of a RelativeStack.
void add_model_center_stack(
    NameTable& table,
    const std::string& theirs,
    const std::string& ours);

} // namespace tessera::zoo
