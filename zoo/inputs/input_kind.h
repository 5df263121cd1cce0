// SPDX-License-Identifier: Apache-2.0
#pragma once
// `InputKind` classifies the inputs of models by name.

#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::zoo {

/// The meaning of an input's values.
enum class InputKind {
  kTokens, ///< token ids
  kInteger, ///< integers: positions, masks, indices
  kLabels,
  kPixels,
  kNumbers,
};

/// The inputs of all built-in models.
std::span<const std::pair<std::string_view, InputKind>> known_inputs();

/// The kind of an input; kWhole for inputs that no built-in model has.
InputKind kind_of_input(const std::string& name);

} // namespace tessera::zoo
