// SPDX-License-Identifier: Apache-2.0
#pragma once
// `check_same_options()` finds ranks that were given other options;
// `refuse_other_settings()` says what differs where ranks have found that
// something does, and `find_rank_difference()` compares any values.

#include "tessera/engine/engine.h"
#include "tessera/runtime/core/option_texts.h"
#include "tessera/sharding/pages/page_ranks.h"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace tessera::engine {

/// The first value in which a rank differs from the first one.
struct RankDifference {
  std::string path;
  size_t rank = 0; ///< place of the other one
  std::string first_value;
  std::string value;

  /// "1 on rank 0 and 2 on rank 3".
  /// @param ranks the numbers of the ranks that were compared.
  std::string text(const std::vector<int>& ranks) const;
};

/// Compares values that mostly are equal. Collective over `ranks`; blocks.
/// @return the same on all ranks.
std::optional<RankDifference> find_rank_difference(
    Communicator& ranks,
    const runtime::OptionTexts& self_texts,
    const WaitCheck& check = {});

/// Compares values of all ranks of the job. Collective over them, on a
/// communicator of its own; blocks.
/// @param label names that communicator.
/// @param place begins the error: "training: "; may be empty.
/// @throws tessera::Error naming the path, two ranks and their values.
void check_same_on_all_ranks(
    World& world,
    const std::string& label,
    const runtime::OptionTexts& self_texts,
    const std::string& place = "");

/// Compares the options that decide which ranks divide the model, before groups
/// of ranks are made of them, and those by which all parts of it are updated;
/// without EngineOptions::parallel also those that
/// check_same_options() compares, before modules that follow from them are
/// compared. Collective over `job`.
/// @param job all ranks.
/// @throws tessera::Error naming an option that differs, two ranks and their
///   values.
void check_same_ranks(Communicator& job, const EngineOptions& options);

/// Compares the options that decide what is computed and sent. Ranks may differ
/// in where things rest and in what they log. Collective over `ranks`, which
/// train the same module; does nothing where check_same_ranks() has done it.
/// @throws tessera::Error naming an option that differs, two ranks and their
///   values.
void check_same_options(
    sharding::PageRanks& ranks,
    const EngineOptions& options);

/// Throws what the ranks have found. Collective over `ranks`.
/// @param self_texts of this rank, some of which differ.
/// @param found the first line of the message.
[[noreturn]] void refuse_other_settings(
    sharding::PageRanks& ranks,
    const runtime::OptionTexts& self_texts,
    const std::string& found);

} // namespace tessera::engine
