// SPDX-License-Identifier: Apache-2.0
#pragma once
// `for_each_code_point()`, `append_utf8()` and `valid_utf8()` read and write
// UTF-8.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::text {

/// U+FFFD, which stands for what is not UTF-8.
inline constexpr std::string_view kReplacementUtf8 = "\xef\xbf\xbd";
/// U+2581, by which sentencepiece and those after it write spaces.
inline constexpr std::string_view kEscapedSpace = "\xe2\x96\x81";

/// Length in bytes of the code point at `at` of valid UTF-8; 1 for a byte that
/// begins none, as in texts of bytes.
inline size_t utf8_length(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const size_t length = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  return length <= text.size() - at ? length : text.size() - at;
}

/// The code point at `at` of valid UTF-8.
inline char32_t code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[at + i]));
  };
  switch (utf8_length(text, at)) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    case 3:
      return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 |
             (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  }
}

/// Calls visit(code point, its first byte) for valid UTF-8.
template <typename Visit>
void for_each_code_point(std::string_view text, const Visit& visit) {
  for (size_t i = 0; i < text.size(); i += utf8_length(text, i)) {
    visit(code_point_at(text, i), i);
  }
}

void append_utf8(std::string& text, char32_t code_point);

/// The text with each maximal ill-formed part replaced by U+FFFD, as Python's
/// bytes.decode(errors="replace") does. `text` itself if it is valid, in which
/// case `storage` is not touched.
std::string_view valid_utf8(std::string_view text, std::string& storage);

/// The number of the first byte that is not UTF-8; nothing: all are.
std::optional<size_t> first_not_utf8(std::string_view text);

/// Whether the text ends within a code point that further bytes may complete.
bool ends_within_code_point(std::string_view text);

size_t count_code_points(std::string_view text);

} // namespace tessera::text
