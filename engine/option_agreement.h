// SPDX-License-Identifier: Apache-2.0
#pragma once
// `check_same_options()` finds ranks that were given other options.

#include "tessera/engine/engine.h"
#include "tessera/sharding/pages/page_ranks.h"

namespace tessera::engine {

/// Compares the options that decide what is computed and sent. Ranks may differ
/// in where things rest and in what they log. Collective over `ranks`, which
/// train the same module.
/// @throws tessera::Error naming an option that differs, two ranks and their
///   values.
void check_same_options(
    sharding::PageRanks& ranks,
    const EngineOptions& options);

} // namespace tessera::engine
