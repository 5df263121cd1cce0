// SPDX-License-Identifier: Apache-2.0
#pragma once
// `map_code_points()` and `keep_code_points()` rewrite texts character by
// character.

#include "tessera/text/tokenizer/aligned_text.h"
#include "tessera/text/tokenizer/characters.h"
#include "tessera/text/tokenizer/utf8.h"

#include <utility>
#include <vector>

namespace tessera::text {

/// Rewrites the whole text by append(code point, code points of the new text).
template <typename Append>
void map_code_points(AlignedText& text, const Append& append) {
  std::vector<Rewritten> code_points;
  code_points.reserve(text.text().size());
  for_each_code_point(
      text.text(), [&](char32_t c, size_t) { append(c, code_points); });
  text.rewrite(code_points);
}

/// Keeps those characters of the whole text of which keeps(code point) is true,
/// and maps them by map(code point).
template <typename Keeps, typename Map>
void keep_code_points(AlignedText& text, const Keeps& keeps, const Map& map) {
  std::vector<Rewritten> code_points;
  code_points.reserve(text.text().size());
  size_t skipped = 0; // before the first one that is kept
  for_each_code_point(text.text(), [&](char32_t c, size_t) {
    if (keeps(c)) {
      code_points.push_back({map(c), 0});
    } else if (code_points.empty()) {
      ++skipped;
    } else {
      --code_points.back().change;
    }
  });
  text.rewrite(code_points, skipped);
}

/// Appends a character in lower case.
inline void append_lower_case(char32_t c, std::vector<Rewritten>& code_points) {
  code_points.push_back({lower_case(c), 0});
  if (c == 0x130) {
    code_points.push_back({0x307, 1});
  }
}

/// Appends the characters that stand for the bytes of a character.
void append_byte_characters(char32_t c, std::vector<Rewritten>& code_points);

} // namespace tessera::text
