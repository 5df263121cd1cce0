// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/graphemes.h"

#include "tessera/text/tokenizer/recent_characters.h"
#include "tessera/text/tokenizer/utf8.h"

#include <unicode/uchar.h>

namespace tessera::text {

namespace {

int32_t break_property(char32_t c) {
  const char* const recent = recent_category(c);
  if (recent != nullptr && recent[0] == 'M') {
    return recent[1] == 'c' ? U_GCB_SPACING_MARK : U_GCB_EXTEND;
  }
  if ((c >= 0x1acf && c <= 0x1add) || (c >= 0x1ae0 && c <= 0x1aeb)) {
    return U_GCB_EXTEND; // of Unicode 17
  }
  return u_getIntPropertyValue(
      static_cast<UChar32>(c), UCHAR_GRAPHEME_CLUSTER_BREAK);
}

bool is_pictographic(char32_t c) {
  return c >= 0x80 && u_hasBinaryProperty(
                          static_cast<UChar32>(c), UCHAR_EXTENDED_PICTOGRAPHIC);
}

/// The annex's rules 3 to 9b.
bool are_joined(int32_t left, int32_t right) {
  const auto ends = [](int32_t property) {
    return property == U_GCB_CONTROL || property == U_GCB_CR ||
           property == U_GCB_LF;
  };
  if (left == U_GCB_CR && right == U_GCB_LF) {
    return true;
  }
  if (ends(left) || ends(right)) {
    return false;
  }
  switch (right) {
    case U_GCB_EXTEND:
    case U_GCB_ZWJ:
    case U_GCB_SPACING_MARK:
      return true;
    case U_GCB_L:
    case U_GCB_LV:
    case U_GCB_LVT:
      return left == U_GCB_L || left == U_GCB_PREPEND;
    case U_GCB_V:
      return left == U_GCB_L || left == U_GCB_V || left == U_GCB_LV ||
             left == U_GCB_PREPEND;
    case U_GCB_T:
      return left == U_GCB_V || left == U_GCB_LV || left == U_GCB_T ||
             left == U_GCB_LVT || left == U_GCB_PREPEND;
    default:
      return left == U_GCB_PREPEND;
  }
}

} // namespace

size_t grapheme_end(std::string_view text, size_t at) {
  const auto is_plain_at = [&](size_t i) { // ASCII
    return i >= text.size() || static_cast<unsigned char>(text[i]) < 0x80;
  };
  if (is_plain_at(at) && is_plain_at(at + 1)) {
    const bool is_line_end = text.substr(at, 2) == "\r\n";
    return at + (is_line_end ? 2 : 1);
  }
  const char32_t first = code_point_at(text, at);
  int32_t left = break_property(first);
  // A pictograph, marks, and a joiner after them (rule 11).
  bool is_in_emoji = is_pictographic(first);
  bool is_emoji_joined = false;
  bool has_open_flag = left == U_GCB_REGIONAL_INDICATOR; // rules 12 and 13
  size_t end = at + utf8_length(text, at);
  while (end < text.size()) {
    const char32_t c = code_point_at(text, end);
    const int32_t right = break_property(c);
    const bool is_flag = right == U_GCB_REGIONAL_INDICATOR;
    const bool continues = are_joined(left, right) ||
                           (is_emoji_joined && is_pictographic(c)) ||
                           (has_open_flag && is_flag);
    if (!continues) {
      break;
    }
    is_emoji_joined = is_in_emoji && right == U_GCB_ZWJ;
    is_in_emoji = is_pictographic(c) ||
                  (is_in_emoji && (right == U_GCB_EXTEND || is_emoji_joined));
    has_open_flag = is_flag && !has_open_flag;
    left = right;
    end += utf8_length(text, end);
  }
  return end;
}

} // namespace tessera::text
