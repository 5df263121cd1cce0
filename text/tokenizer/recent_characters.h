// SPDX-License-Identifier: Apache-2.0
#pragma once
// `recent_category()` knows the characters that Unicode got in versions 15 to
// 16, which the `tokenizers` library knows and ICU or PCRE2 may not.

#include <string>
#include <string_view>

namespace tessera::text {

/// The general category, e.g. "Lo", of a character that Unicode 14 had not;
/// nullptr: of others.
const char* recent_category(char32_t c);

/// Whether recent_items() of a property may matter to a text. Fast.
/// @param text valid UTF-8.
bool has_recent_character(std::string_view text);

/// What is added to a class of PCRE2 with the tables of Unicode 14 for those of
/// Unicode 16.
/// @param property as PCRE2 writes it: a category ("L", "Lu", "L&"),
///   "Alphabetic", "Lowercase", "Uppercase" or "sc:Han". Of others nothing is.
std::string recent_items(std::string_view property);

} // namespace tessera::text
