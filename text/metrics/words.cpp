// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/metrics/words.h"

#include "tessera/text/tokenizer/utf8.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

namespace tessera::text {

namespace {

bool is_python_space(char32_t character) {
  return (character >= 0x1c && character <= 0x1f) ||
         u_isUWhiteSpace(static_cast<UChar32>(character)) != 0;
}

} // namespace

std::string lower_case(std::string_view text) {
  std::string lower;
  icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<int32_t>(text.size())))
      .toLower(icu::Locale::getRoot())
      .toUTF8String(lower);
  return lower;
}

Words split_words(std::string_view text) {
  std::string storage;
  const std::string_view valid = valid_utf8(text, storage);
  Words words;
  bool is_within = false;
  for_each_code_point(valid, [&](char32_t character, size_t at) {
    if (is_python_space(character)) {
      is_within = false;
      return;
    }
    if (!is_within) {
      words.emplace_back();
      is_within = true;
    }
    words.back() += valid.substr(at, utf8_length(valid, at));
  });
  return words;
}

bool is_python_word_character(char32_t character) {
  const auto one = static_cast<UChar32>(character);
  return character == '_' ||
         (U_GET_GC_MASK(one) & (U_GC_L_MASK | U_GC_N_MASK)) != 0;
}

NgramCounts count_ngrams(const Words& words, size_t length) {
  NgramCounts counts;
  for (size_t i = 0; i + length <= words.size(); ++i) {
    const auto first = words.begin() + static_cast<std::ptrdiff_t>(i);
    ++counts[Words(first, first + static_cast<std::ptrdiff_t>(length))];
  }
  return counts;
}

} // namespace tessera::text
