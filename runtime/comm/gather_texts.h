// SPDX-License-Identifier: Apache-2.0
#pragma once
// `gather_texts()` all-gathers short strings.

#include "tessera/runtime/comm/communicator.h"

#include <string>
#include <vector>

namespace tessera::runtime {

/// Returns the strings of all ranks of `group`, by rank. Collective; blocks.
/// @param what names the collective in errors.
std::vector<std::string> gather_texts(
    Communicator& group,
    const std::string& text,
    const std::string& what,
    const WaitCheck& check = {});

} // namespace tessera::runtime
