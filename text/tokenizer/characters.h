// SPDX-License-Identifier: Apache-2.0
#pragma once
// `is_white_space()`, `is_punctuation()`, ... tell the classes of characters by
// which tokenizers divide texts, as the `tokenizers` library does.

#include <cstdint>
#include <string_view>

namespace tessera::text {

/// A run of code points; both ends are part of it.
struct CodePoints {
  char32_t first;
  char32_t last;
};

/// Of the property White_Space.
inline bool is_white_space(char32_t c) {
  if (c < 0x80) {
    return c == ' ' || (c >= '\t' && c <= '\r');
  }
  return c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
         c == 0x202f || c == 0x205f || c == 0x3000;
}

/// Numbers of all kinds: digits, letters and others.
bool is_numeric(char32_t c);

/// What `\w` stands for in the expression of `Whitespace`: letters, marks,
/// digits, connectors and joiners.
bool is_word_character(char32_t c);

/// Punctuation of [Note: Unicode 8], and the symbols of ASCII.
bool is_punctuation(char32_t c);
/// Control characters, formats and private use of [Note: Unicode 8], except
/// tabulators and ends of lines.
bool is_control(char32_t c);
/// Non-spacing marks of [Note: Unicode 8].
bool is_nonspacing_mark(char32_t c);

/// All marks of Unicode 9, whose tables `StripAccents` and the normal forms
/// have.
bool is_combining_mark(char32_t c);

/// Of BERT's blocks of ideographs; Hangul and kana are not among them.
bool is_chinese(char32_t c);

/// In lower case, regardless of its neighbors. U+0130 alone has two characters:
/// this one and U+0307.
char32_t lower_case(char32_t c);

/// The number of a script as `UnicodeScripts` distinguishes them: kana are of
/// the script of ideographs. kAnyScript: of none, as spaces are.
constexpr int32_t kAnyScript = -1;
int32_t script_of(char32_t c);

/// Of Unicode 9 or older.
bool is_of_unicode_9(char32_t c);

bool is_ascii(std::string_view text);

} // namespace tessera::text
