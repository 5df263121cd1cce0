// SPDX-License-Identifier: Apache-2.0
#pragma once
// `pcre2_syntax()` writes a regular expression of Oniguruma in the syntax of
// PCRE2.

#include <string>
#include <string_view>

namespace tessera::text {

struct Pcre2Pattern {
  std::string pattern;
  bool has_named_groups = false;
};

/// Which characters have which properties.
enum class UnicodeTables {
  kOfPcre2,
  /// Those of Unicode 16, as the `tokenizers` library has; slower. Differs for
  /// texts with has_recent_character() only.
  kOfUnicode16,
};

/// An expression that PCRE2 reads, with PCRE2_MULTILINE, as Oniguruma (in its
/// syntax of Ruby, as the `tokenizers` library uses it) reads `pattern`: e.g.
/// \h is a hexadecimal digit, (?m) lets a dot match ends of lines, {1,2}+ is
/// not possessive, [a-z&&[^b]] is an intersection, and \s, \w, \d, [[:alpha:]]
/// are those of Unicode as Oniguruma has them.
/// @throws tessera::Error on what has no counterpart (absence operators,
///   conditions, subexpression calls, \K, \X, \y, ages and blocks of
///   characters, case-insensitive text that has ligatures) and on what is
///   wrong.
Pcre2Pattern pcre2_syntax(std::string_view pattern, UnicodeTables tables);

} // namespace tessera::text
