// SPDX-License-Identifier: Apache-2.0
#pragma once
// "Did you mean ...?" for names that were not found.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

/// Fewest insertions, deletions, replacements of one byte and swaps of two
/// neighbours that turn `a` into `b` (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `name`, or an empty string when none is near: at
/// most a third of the longer name may differ. The first of equals wins.
std::string nearest_name(
    std::string_view name,
    std::span<const std::string> candidates);

/// "a, b, c".
std::string join_names(std::span<const std::string> names);

} // namespace tessera
