// SPDX-License-Identifier: Apache-2.0
#pragma once
// `NumberedName` is the match of a name with a pattern of a name table, whose
// `*` are numbers; filled() translates them to another pattern. For patterns
// of users see runtime/core/name_patterns.h.

#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

/// The result of matching the beginning of a name against a pattern, in which
/// `*` matches a number: the numbers, and the unmatched rest.
struct NumberedName {
  bool found = false;
  std::vector<std::string> numbers;
  std::string rest;
};

/// Matches a module's name, followed by nothing, ".weight" or ".bias".
NumberedName match_module(std::string_view pattern, std::string_view name);

/// Matches a whole name; a `*` at the end matches anything.
bool matches_full(std::string_view pattern, std::string_view name);

/// The pattern with the match's numbers filled in, followed by its rest.
std::string filled(std::string_view pattern, const NumberedName& match);

/// Renames the norm parameters of TensorFlow's and the oldest PyTorch
/// checkpoints to their current names.
std::string modern_name(std::string_view name);

} // namespace tessera::zoo
