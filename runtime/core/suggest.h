// SPDX-License-Identifier: Apache-2.0
#pragma once
// `nearest_name()` finds the suggestion for "Did you mean ...?" when a name is
// unknown.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tessera::runtime {

/// Minimum number of insertions, deletions and replacements of one byte and
/// swaps of two neighboring bytes that turn `a` into `b` (optimal string
/// alignment distance).
size_t edit_distance(std::string_view a, std::string_view b);

/// Returns the candidate nearest to `name`, the first one on a tie, or an empty
/// string if none is close: at most a third of the longer name may differ.
std::string nearest_name(
    std::string_view name,
    std::span<const std::string> candidates);

/// The candidates nearest to `name` for an error message, e.g. "; the nearest
/// are 'encoder.layer.0', 'encoder.layer.1'". Empty when there are none.
std::string nearest_names_hint(
    std::string_view name,
    std::span<const std::string> candidates);

/// "a, b, c".
std::string join_names(std::span<const std::string> names);

} // namespace tessera::runtime
