// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the inputs of models are, by their names.

#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::zoo {

/// What the numbers of an input are.
enum class InputKind {
  kTokens, ///< of the vocabulary
  kWhole, ///< positions, masks, places
  kLabels,
  kPixels,
  kNumbers,
};

/// Of all models that come with Tessera.
std::span<const std::pair<std::string_view, InputKind>> known_inputs();

/// By name; kWhole for those that only models from elsewhere have.
InputKind kind_of_input(const std::string& name);

} // namespace tessera::zoo
