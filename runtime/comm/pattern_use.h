// SPDX-License-Identifier: Apache-2.0
#pragma once
// `check_used_on_any_rank()` finds patterns that match nothing on any rank,
// where ranks have other parts of a model.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/core/name_patterns.h"

namespace tessera::runtime {

/// NamePatterns::check_all_used() of all ranks together, which may have other
/// patterns. Collective over `ranks`; blocks.
/// @param patterns tested on all names of this rank.
/// @throws tessera::Error on all ranks.
void check_used_on_any_rank(const NamePatterns& patterns, Communicator& ranks);

} // namespace tessera::runtime
