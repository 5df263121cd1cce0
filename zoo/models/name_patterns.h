// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names of tensors with numbers in them, as name tables have them.

#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

/// Whether a text begins with a pattern, in which `*` stands for a number; its
/// numbers, and what follows.
struct NameMatch {
  bool found = false;
  std::vector<std::string> numbers;
  std::string rest;
};

/// A module's name with numbers, and nothing, ".weight" or ".bias".
NameMatch match_module(std::string_view pattern, std::string_view name);

/// A whole name; a `*` at the end stands for anything.
bool matches_whole(std::string_view pattern, std::string_view name);

/// The pattern with the match's numbers, and what followed.
std::string filled(std::string_view pattern, const NameMatch& match);

/// What TensorFlow's checkpoints call the parameters of norms, and the oldest
/// ones of PyTorch after them, as newer ones do.
std::string modern_name(std::string_view name);

} // namespace tessera::zoo
