// SPDX-License-Identifier: Apache-2.0
#pragma once
// add_model_center_stack() adds ModelCenter's names of transformer layers.

#include "tessera/zoo/formats/name_table.h"

#include <string>

namespace tessera::zoo {

/// Adds the layers and the norm after them to `table.base`.
/// @param foreign "encoder", or "decoder", which has cross-attention.
/// @param native the name of a RelativeStack.
void add_model_center_stack(
    NameTable& table,
    const std::string& foreign,
    const std::string& native);

} // namespace tessera::zoo
