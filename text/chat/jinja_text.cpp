// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/chat/jinja_text.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/tokenizer/utf8.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

namespace tessera::text::jinja {

namespace {

icu::UnicodeString to_icu(std::string_view text) {
  TESSERA_CHECK(
      text.size() <= std::numeric_limits<std::int32_t>::max() / 4,
      "a string of {} bytes is too long to change its case",
      text.size());
  return icu::UnicodeString::fromUTF8(
      {text.data(), static_cast<std::int32_t>(text.size())});
}

std::string from_icu(const icu::UnicodeString& text) {
  std::string result;
  text.toUTF8String(result);
  return result;
}

bool is_line_end(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 ||
         c == 0x2028 || c == 0x2029;
}

bool is_any_of(std::string_view characters, std::string_view character) {
  for (std::size_t i = 0; i < characters.size();
       i += utf8_length(characters, i)) {
    if (characters.substr(i, utf8_length(characters, i)) == character) {
      return true;
    }
  }
  return false;
}

/// The first byte of the code point that ends before `end`.
std::size_t previous(std::string_view text, std::size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80);
  return end;
}

template <typename Accept>
bool all_code_points(std::string_view text, const Accept& accept) {
  bool all = !text.empty();
  for_each_code_point(
      text, [&](char32_t c, std::size_t) { all = all && accept(c); });
  return all;
}

/// Python's rule for islower() and isupper(): some cased letter, none of the
/// other case.
bool is_of_case(std::string_view text, bool is_upper_wanted) {
  bool found = false;
  bool other = false;
  for_each_code_point(text, [&](char32_t c, std::size_t) {
    const auto point = static_cast<UChar32>(c);
    const bool upper = u_hasBinaryProperty(point, UCHAR_UPPERCASE) != 0;
    const bool lower = u_hasBinaryProperty(point, UCHAR_LOWERCASE) != 0;
    const bool title = u_charType(point) == U_TITLECASE_LETTER;
    found = found || (is_upper_wanted ? upper : lower);
    other = other || title || (is_upper_wanted ? lower : upper);
  });
  return found && !other;
}

bool is_printable_in_python(char32_t c) {
  switch (u_charType(static_cast<UChar32>(c))) {
    case U_CONTROL_CHAR:
    case U_FORMAT_CHAR:
    case U_SURROGATE:
    case U_PRIVATE_USE_CHAR:
    case U_UNASSIGNED:
    case U_LINE_SEPARATOR:
    case U_PARAGRAPH_SEPARATOR:
      return false;
    case U_SPACE_SEPARATOR:
      return c == ' ';
    default:
      return true;
  }
}

void append_hex(std::string& text, const char* prefix, char32_t c, int digits) {
  text += prefix;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    text += "0123456789abcdef"[c >> shift & 0xf];
  }
}

std::vector<std::string> split_at_spaces(
    std::string_view text,
    std::int64_t max_splits,
    SplitFrom from) {
  std::vector<std::string> parts;
  const auto side =
      from == SplitFrom::kLeft ? StripSide::kLeft : StripSide::kRight;
  text = strip(text, side);
  while (!text.empty()) {
    if (max_splits >= 0 &&
        parts.size() == static_cast<std::size_t>(max_splits)) {
      parts.emplace_back(text);
      break;
    }
    if (from == SplitFrom::kLeft) {
      std::size_t end = 0;
      while (end < text.size() && !is_space(code_point_at(text, end))) {
        end += utf8_length(text, end);
      }
      parts.emplace_back(text.substr(0, end));
      text.remove_prefix(end);
    } else {
      std::size_t begin = text.size();
      while (begin > 0 &&
             !is_space(code_point_at(text, previous(text, begin)))) {
        begin = previous(text, begin);
      }
      parts.emplace_back(text.substr(begin));
      text = text.substr(0, begin);
    }
    text = strip(text, side);
  }
  return parts;
}

/// The first character in title case, the others in lower case. The case of a
/// final sigma depends on the letters before it.
std::string title_word(std::string_view word) {
  const std::size_t length = utf8_length(word, 0);
  const std::string_view first = word.substr(0, length);
  const auto point = static_cast<UChar32>(code_point_at(word, 0));
  const UChar32 title = u_totitle(point);
  std::string result;
  if (title != point) {
    append_utf8(result, static_cast<char32_t>(title));
  } else {
    // One without a title case of its own may have an upper case of several.
    const std::string upper = upper_cased(first);
    const std::size_t begin = utf8_length(upper, 0);
    result = upper.substr(0, begin) +
             lower_cased_text(std::string_view(upper).substr(begin));
  }
  return result + lower_cased_text(word).substr(lower_cased_text(first).size());
}

/// Without underscores between digits, as Python reads numbers; nothing where
/// it does not.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string result;
  const auto is_ascii_digit = [&](std::size_t i) {
    return i < text.size() && text[i] >= '0' && text[i] <= '9';
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      result += text[i];
    } else if (i == 0 || !is_ascii_digit(i - 1) || !is_ascii_digit(i + 1)) {
      return std::nullopt;
    }
  }
  return result;
}

} // namespace

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 ||
         c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

std::string_view strip(
    std::string_view text,
    StripSide side,
    std::optional<std::string_view> characters) {
  const auto removes = [&](std::size_t at) {
    return characters
               ? is_any_of(*characters, text.substr(at, utf8_length(text, at)))
               : is_space(code_point_at(text, at));
  };
  if (side != StripSide::kRight) {
    std::size_t begin = 0;
    while (begin < text.size() && removes(begin)) {
      begin += utf8_length(text, begin);
    }
    text.remove_prefix(begin);
  }
  if (side != StripSide::kLeft) {
    std::size_t end = text.size();
    while (end > 0 && removes(previous(text, end))) {
      end = previous(text, end);
    }
    text = text.substr(0, end);
  }
  return text;
}

std::vector<std::string> split(
    std::string_view text,
    std::optional<std::string_view> separator,
    std::int64_t max_splits,
    SplitFrom from) {
  std::vector<std::string> parts;
  const auto is_full = [&] {
    return max_splits >= 0 &&
           parts.size() == static_cast<std::size_t>(max_splits);
  };
  if (!separator) {
    parts = split_at_spaces(text, max_splits, from);
  } else if (from == SplitFrom::kLeft) {
    std::size_t found = 0;
    while (!is_full() &&
           (found = text.find(*separator)) != std::string_view::npos) {
      parts.emplace_back(text.substr(0, found));
      text.remove_prefix(found + separator->size());
    }
    parts.emplace_back(text);
  } else {
    std::size_t found = 0;
    while (!is_full() && separator->size() <= text.size() &&
           (found = text.rfind(*separator)) != std::string_view::npos) {
      parts.emplace_back(text.substr(found + separator->size()));
      text = text.substr(0, found);
    }
    parts.emplace_back(text);
  }
  if (from == SplitFrom::kRight) {
    std::reverse(parts.begin(), parts.end());
  }
  return parts;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at;
    const char32_t c = code_point_at(text, at);
    at += utf8_length(text, at);
    if (!is_line_end(c)) {
      continue;
    }
    if (c == '\r' && at < text.size() && text[at] == '\n') {
      ++at;
    }
    lines.emplace_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) {
    lines.emplace_back(text.substr(begin));
  }
  return lines;
}

std::string upper_cased(std::string_view text) {
  return from_icu(to_icu(text).toUpper(icu::Locale::getRoot()));
}

std::string lower_cased_text(std::string_view text) {
  return from_icu(to_icu(text).toLower(icu::Locale::getRoot()));
}

std::string capitalized(std::string_view text) {
  return text.empty() ? std::string() : title_word(text);
}

std::string title_cased(std::string_view text) {
  std::string result;
  std::size_t word = 0; // where it begins
  bool is_within_word = false;
  for_each_code_point(text, [&](char32_t c, std::size_t at) {
    const bool is_cased =
        u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED) != 0;
    if (is_cased && !is_within_word) {
      word = at;
    } else if (!is_cased) {
      if (is_within_word) {
        result += title_word(text.substr(word, at - word));
      }
      result += text.substr(at, utf8_length(text, at));
    }
    is_within_word = is_cased;
  });
  return is_within_word ? result + title_word(text.substr(word)) : result;
}

bool is_upper(std::string_view text) {
  return is_of_case(text, true);
}

bool is_lower(std::string_view text) {
  return is_of_case(text, false);
}

bool is_digit(std::string_view text) {
  return all_code_points(text, [](char32_t c) {
    const auto type = static_cast<UNumericType>(
        u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE));
    return type == U_NT_DECIMAL || type == U_NT_DIGIT;
  });
}

bool is_alpha(std::string_view text) {
  return all_code_points(
      text, [](char32_t c) { return u_isalpha(static_cast<UChar32>(c)) != 0; });
}

bool is_alnum(std::string_view text) {
  return all_code_points(text, [](char32_t c) {
    const auto point = static_cast<UChar32>(c);
    return u_isalpha(point) != 0 ||
           u_getIntPropertyValue(point, UCHAR_NUMERIC_TYPE) != U_NT_NONE;
  });
}

bool is_space(std::string_view text) {
  return all_code_points(text, [](char32_t c) { return is_space(c); });
}

std::vector<std::size_t> code_point_offsets(std::string_view text) {
  std::vector<std::size_t> offsets;
  offsets.reserve(text.size() + 1);
  for_each_code_point(
      text, [&](char32_t, std::size_t at) { offsets.push_back(at); });
  offsets.push_back(text.size());
  return offsets;
}

std::string quoted_text(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string result(1, quote);
  for_each_code_point(text, [&](char32_t c, std::size_t at) {
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      result += '\\';
      result += static_cast<char>(c);
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\r') {
      result += "\\r";
    } else if (c == '\t') {
      result += "\\t";
    } else if (is_printable_in_python(c)) {
      result += text.substr(at, utf8_length(text, at));
    } else if (c < 0x100) {
      append_hex(result, "\\x", c, 2);
    } else if (c < 0x10000) {
      append_hex(result, "\\u", c, 4);
    } else {
      append_hex(result, "\\U", c, 8);
    }
  });
  return result + quote;
}

std::string float_text(double number) {
  if (std::isnan(number)) {
    return "nan";
  }
  if (std::isinf(number)) {
    return number < 0 ? "-inf" : "inf";
  }
  // The shortest digits that read back as the number: "d.ddde+XX".
  char buffer[64];
  const auto written = std::to_chars(
      buffer, buffer + sizeof(buffer), number, std::chars_format::scientific);
  const std::string_view shown(
      buffer, static_cast<std::size_t>(written.ptr - buffer));
  const std::size_t e = shown.find('e');
  const int exponent = std::atoi(std::string(shown.substr(e + 1)).c_str());
  std::string digits;
  for (const char c : shown.substr(0, e)) {
    if (c >= '0' && c <= '9') {
      digits += c;
    }
  }
  std::string result = shown.front() == '-' ? "-" : "";
  if (exponent >= -4 && exponent < 16) {
    if (exponent < 0) {
      const auto zeros = static_cast<std::size_t>(-exponent - 1);
      return result + "0." + std::string(zeros, '0') + digits;
    }
    const auto full = static_cast<std::size_t>(exponent) + 1;
    if (digits.size() <= full) {
      return result + digits + std::string(full - digits.size(), '0') + ".0";
    }
    return result + digits.substr(0, full) + "." + digits.substr(full);
  }
  result += digits.substr(0, 1);
  if (digits.size() > 1) {
    result += "." + digits.substr(1);
  }
  const int magnitude = std::abs(exponent);
  return result + (exponent < 0 ? "e-" : "e+") + (magnitude < 10 ? "0" : "") +
         std::to_string(magnitude);
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  const auto plain = without_underscores(strip(text));
  if (!plain || plain->empty()) {
    return std::nullopt;
  }
  const bool has_plus = plain->front() == '+';
  const char* begin = plain->data() + (has_plus ? 1 : 0);
  const char* end = plain->data() + plain->size();
  if (has_plus && begin < end && *begin == '-') {
    return std::nullopt;
  }
  std::int64_t number = 0;
  const auto read = std::from_chars(begin, end, number);
  TESSERA_CHECK(
      read.ec != std::errc::result_out_of_range,
      "the integer {} needs more than 64 bits",
      text);
  return read.ec == std::errc() && read.ptr == end ? std::optional(number)
                                                   : std::nullopt;
}

std::optional<double> parse_float(std::string_view text) {
  const auto plain = without_underscores(strip(text));
  if (!plain || plain->empty()) {
    return std::nullopt;
  }
  // strtod() also reads hexadecimal numbers, which Python does not.
  for (const char c : *plain) {
    if (c == 'x' || c == 'X' || c == '(') {
      return std::nullopt;
    }
  }
  char* end = nullptr;
  const double number = std::strtod(plain->c_str(), &end);
  return end == plain->c_str() + plain->size() ? std::optional(number)
                                               : std::nullopt;
}

std::string escaped_html(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '\'':
        result += "&#39;";
        break;
      case '"':
        result += "&#34;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string json_text(std::string_view text, bool ensure_ascii) {
  std::string result = "\"";
  for_each_code_point(text, [&](char32_t c, std::size_t at) {
    switch (c) {
      case '"':
        result += "\\\"";
        return;
      case '\\':
        result += "\\\\";
        return;
      case '\n':
        result += "\\n";
        return;
      case '\r':
        result += "\\r";
        return;
      case '\t':
        result += "\\t";
        return;
      case '\f':
        result += "\\f";
        return;
      case '\b':
        result += "\\b";
        return;
      default:
        break;
    }
    if (c < 0x20 || (ensure_ascii && c >= 0x7f && c < 0x10000)) {
      append_hex(result, "\\u", c, 4);
    } else if (ensure_ascii && c >= 0x10000) {
      append_hex(result, "\\u", 0xd800 + ((c - 0x10000) >> 10), 4);
      append_hex(result, "\\u", 0xdc00 + ((c - 0x10000) & 0x3ff), 4);
    } else {
      result += text.substr(at, utf8_length(text, at));
    }
  });
  return result + "\"";
}

} // namespace tessera::text::jinja
