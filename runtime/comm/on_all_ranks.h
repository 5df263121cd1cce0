// SPDX-License-Identifier: Apache-2.0
#pragma once
// `on_all_ranks()` makes a failure of one rank one of all.

#include "tessera/runtime/comm/communicator.h"

#include <functional>
#include <string>

namespace tessera::runtime {

/// Calls `work`; if it throws on some rank, every rank throws. Collective over
/// `ranks`, which are for CPU tensors; blocks.
/// @param label begins the message on the ranks where `work` did not throw.
void on_all_ranks(
    Communicator& ranks,
    const std::string& label,
    const std::function<void()>& work,
    const WaitCheck& check = {});

} // namespace tessera::runtime
