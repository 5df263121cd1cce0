// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RecomputedParts` says what a planned run computes again in backward instead
// of keeping it.

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::planner {

struct RecomputedParts {
  int64_t layers = 0; ///< model.checkpoint_layers
  bool operators = false; ///< recompute_operators
  bool attention = false; ///< model.checkpoint_attention, of the other layers
  bool divided_inputs = false; ///< model.divide_checkpoints

  bool operator==(const RecomputedParts&) const = default;
  bool any() const {
    return layers > 0 || operators || attention;
  }
  /// The same parts, and so many layers.
  RecomputedParts with_layers(int64_t count) const;

  /// `key=value` of the configuration, of all of them.
  std::vector<std::string> overrides() const;
  /// For a column of a table: "op+at+17/t", 17 layers with divided inputs;
  /// "-" for nothing.
  std::string column() const;
  /// "cheap operators, attention, 17 layers with divided inputs"; "nothing".
  std::string text() const;
};

} // namespace tessera::planner
