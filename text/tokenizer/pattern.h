// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Pattern` is what a tokenizer.json looks for in texts: a string or a regular
// expression.

#include "tessera/runtime/core/json_value.h"
#include "tessera/text/tokenizer/aligned_text.h"
#include "tessera/text/tokenizer/regex.h"

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera::text {

/// Immutable; may be used from several threads at once.
class Pattern {
 public:
  explicit Pattern(std::string text) : label_(std::move(text)) {}
  explicit Pattern(Regex regex) : label_(std::move(regex)) {}

  /// Appends all matches in `text`, in order; they do not overlap. They may be
  /// empty, but not right behind another one. An empty text has none.
  void find_all(std::string_view text, std::vector<ByteRange>& matches) const;

  /// Whether it is a string of one character.
  bool is_character() const;

 private:
  std::variant<std::string, Regex> label_;
};

/// {"String": ...} or {"Regex": ...}.
/// @throws tessera::Error on anything else.
Pattern read_pattern(const runtime::JsonValue& section);

/// A field of exactly one character.
/// @throws tessera::Error on anything else.
char32_t read_character(const runtime::JsonValue& field);

} // namespace tessera::text
