// SPDX-License-Identifier: Apache-2.0
#pragma once
// `check_same_options()` finds ranks that were given other options;
// `tell_other_settings()` says what differs where ranks have found that
// something does.

#include "tessera/engine/engine.h"
#include "tessera/runtime/core/option_texts.h"
#include "tessera/sharding/pages/page_ranks.h"

#include <string>

namespace tessera::engine {

/// Compares the options that decide which ranks divide the model, before groups
/// of ranks are made of them. Collective over `job`.
/// @param job all ranks.
/// @throws tessera::Error naming an option that differs, two ranks and their
///   values.
void check_same_ranks(Communicator& job, const EngineOptions& options);

/// Compares the options that decide what is computed and sent. Ranks may differ
/// in where things rest and in what they log. Collective over `ranks`, which
/// train the same module.
/// @throws tessera::Error naming an option that differs, two ranks and their
///   values.
void check_same_options(
    sharding::PageRanks& ranks,
    const EngineOptions& options);

/// Throws what the ranks have found. Collective over `ranks`.
/// @param mine of this rank, some of which differ.
/// @param found the first line of the message.
[[noreturn]] void tell_other_settings(
    sharding::PageRanks& ranks,
    const runtime::OptionTexts& mine,
    const std::string& found);

} // namespace tessera::engine
