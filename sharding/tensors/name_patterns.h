// SPDX-License-Identifier: Apache-2.0
#pragma once
// `NamePatterns` selects modules or parameters by name. Every pattern must
// match something; one that does not is an error with suggestions.

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::sharding {

/// The candidates nearest to `name` for an error message, e.g. "; the nearest
/// are 'encoder.layer.0', 'encoder.layer.1'". Empty when there are none.
std::string nearest_names_hint(
    std::string_view name,
    std::span<const std::string> candidates);

/// The patterns of one option. Remembers which of them have matched.
class NamePatterns {
 public:
  /// Regular expressions (ECMAScript) that must match a whole path.
  /// @param option for errors, e.g. "GroupPolicy::block_paths".
  /// @throws tessera::Error on an empty or malformed pattern, quoting it.
  static NamePatterns of_paths(
      std::string option,
      const std::vector<std::string>& patterns);

  /// C++ type names as demangled, or what follows some "::" in them. "Impl" at
  /// the end may be omitted: "BertLayer" matches "tessera::BertLayerImpl".
  /// @throws tessera::Error on an empty name.
  static NamePatterns of_types(
      std::string option,
      const std::vector<std::string>& names);

  bool empty() const {
    return patterns_.empty();
  }

  /// Returns the index of the first pattern that matches `name`, if any. All
  /// patterns that match count as used.
  std::optional<size_t> first_match(const std::string& name);

  /// @throws tessera::Error when a pattern has matched none of the names that
  ///   it was tested on, with the nearest of them.
  void check_all_used() const;

 private:
  struct Pattern {
    std::string text;
    std::string plain; ///< as a name, for distances
    std::function<bool(const std::string&)> picks;
    bool used = false;
  };

  explicit NamePatterns(std::string option) : option_(std::move(option)) {}

  std::string option_;
  std::vector<Pattern> patterns_;
  std::vector<std::string> seen_;
};

} // namespace tessera::sharding
