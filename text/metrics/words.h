// SPDX-License-Identifier: Apache-2.0
#pragma once
// `lower_case()`, `split_words()` and `NgramCounts` are what metrics of texts
// share; white space and letters are those of Python.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

using Words = std::vector<std::string>;

/// Python's str.lower().
std::string lower_case(std::string_view text);

/// Python's str.split().
Words split_words(std::string_view text);

/// Whether Python's `\w` matches the character.
bool is_python_word_character(char32_t character);

/// How often each sequence of `length` words occurs.
using NgramCounts = std::map<Words, int64_t>;
NgramCounts count_ngrams(const Words& words, size_t length);

} // namespace tessera::text
