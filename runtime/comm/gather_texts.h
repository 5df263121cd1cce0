// SPDX-License-Identifier: Apache-2.0
#pragma once
// Short texts from every rank to every rank.

#include "tessera/runtime/comm/communicator.h"

#include <string>
#include <vector>

namespace tessera {

/// The texts of all ranks of `group`, by rank. Collective; blocks.
/// @param what names the collective in errors.
std::vector<std::string> gather_texts(
    Communicator& group,
    const std::string& text,
    const std::string& what,
    const WaitCheck& check = {});

} // namespace tessera
