// SPDX-License-Identifier: Apache-2.0
#pragma once
// `strip()`, `split()`, `upper_cased()` and others are the methods of Python's
// str, over valid UTF-8.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text::jinja {

/// Python's str.isspace() of one character.
bool is_space(char32_t c);

enum class StripSide { kLeft, kRight, kBoth };
/// @param characters to remove; nothing: whitespace.
std::string_view strip(
    std::string_view text,
    StripSide side = StripSide::kBoth,
    std::optional<std::string_view> characters = std::nullopt);

enum class SplitFrom { kLeft, kRight };
/// @param separator not empty; nothing: runs of whitespace.
/// @param max_splits negative: all.
std::vector<std::string> split(
    std::string_view text,
    std::optional<std::string_view> separator,
    std::int64_t max_splits,
    SplitFrom from);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);

std::string upper_cased(std::string_view text);
std::string lower_cased_text(std::string_view text);
std::string capitalized(std::string_view text);
/// Python's str.title().
std::string title_cased(std::string_view text);
bool is_upper(std::string_view text);
bool is_lower(std::string_view text);
bool is_digit(std::string_view text);
bool is_alpha(std::string_view text);
bool is_alnum(std::string_view text);
bool is_space(std::string_view text);

/// Where each code point begins, and the size of the text.
std::vector<std::size_t> code_point_offsets(std::string_view text);

/// The quoted text, as Python's repr() writes it.
std::string quoted_text(std::string_view text);
/// Python's repr() of a float.
std::string float_text(double number);
/// Python's int(text) and float(text); nothing where those throw.
std::optional<std::int64_t> parse_integer(std::string_view text);
std::optional<double> parse_float(std::string_view text);

/// `&`, `<`, `>` and quotes as markupsafe escapes them.
std::string escaped_html(std::string_view text);
/// As json.dumps() writes it, with quotes.
std::string json_text(std::string_view text, bool ensure_ascii);

} // namespace tessera::text::jinja
