// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tokenizer/bert_text.h"

#include "tessera/runtime/core/error.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utf16.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cstdint>

namespace tessera::zoo {
namespace {

// [Note: Unicode 8]
// The tokenizers library, with which the published checkpoints are used, has
// the character categories of Unicode 8. It treats later characters as letters,
// never as marks, punctuation or control characters. We ask ICU for the age of
// a character and do the same, so that ids do not depend on the version of ICU.
enum class CharacterClass { kLetter, kControl, kSpace, kMark, kPunctuation };

bool is_newer_than_unicode_8(UChar32 c) {
  UVersionInfo age;
  u_charAge(c, age);
  return age[0] > 8 || age[0] == 0; // 0: not assigned yet
}

CharacterClass character_class(UChar32 c) {
  if (c == '\t' || c == '\n' || c == '\r') {
    return CharacterClass::kSpace;
  }
  if (c < 0x80 && u_isgraph(c) && !u_isalnum(c)) {
    return CharacterClass::kPunctuation; // symbols such as '$' and '+' too
  }
  // Characters whose category has changed since; see [Note: Unicode 8].
  switch (c) {
    case 0x166d:
    case 0x111c9:
      return CharacterClass::kPunctuation;
    case 0x1734:
      return CharacterClass::kMark;
    case 0x1885:
    case 0x1886:
    case 0xa9bd:
      return CharacterClass::kLetter;
    default:
      break;
  }
  if (c == 0xfffd) {
    return CharacterClass::kControl;
  }
  if (c >= 0x80 && is_newer_than_unicode_8(c)) {
    return CharacterClass::kLetter;
  }
  const std::uint32_t category = U_GET_GC_MASK(c);
  if (category & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK | U_GC_CS_MASK)) {
    return CharacterClass::kControl;
  }
  if (category & U_GC_Z_MASK) {
    return CharacterClass::kSpace;
  }
  if (category & U_GC_MN_MASK) {
    return CharacterClass::kMark;
  }
  if (category & U_GC_P_MASK) {
    return CharacterClass::kPunctuation;
  }
  return CharacterClass::kLetter;
}

// BERT's blocks of ideographs; Hangul and kana are not among them.
bool is_chinese(UChar32 c) {
  struct Range {
    UChar32 first;
    UChar32 last;
  };
  static constexpr Range kRanges[] = {
      {0x3400, 0x4dbf},
      {0x4e00, 0x9fff},
      {0xf900, 0xfaff},
      {0x20000, 0x2a6df},
      {0x2a700, 0x2b73f},
      {0x2b740, 0x2b81f},
      {0x2b920, 0x2ceaf},
      {0x2f800, 0x2fa1f}};
  return std::any_of(std::begin(kRanges), std::end(kRanges), [c](Range range) {
    return range.first <= c && c <= range.last;
  });
}

// Calls visit(code point) over the text; ill-formed UTF-8 is read as U+FFFD.
template <typename Visit>
void for_each_code_point(std::string_view text, Visit visit) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  const auto length = static_cast<std::int64_t>(text.size());
  for (std::int64_t i = 0; i < length;) {
    UChar32 c = 0;
    U8_NEXT_OR_FFFD(bytes, i, length, c);
    visit(c);
  }
}

template <typename Visit>
void for_each_code_point(const icu::UnicodeString& text, Visit visit) {
  for (std::int32_t i = 0; i < text.length();) {
    const UChar32 c = text.char32At(i);
    visit(c);
    i += U16_LENGTH(c);
  }
}

icu::UnicodeString cleaned(std::string_view text, bool split_chinese) {
  icu::UnicodeString result;
  for_each_code_point(text, [&](UChar32 c) {
    const CharacterClass kind = character_class(c);
    if (kind == CharacterClass::kSpace) {
      result.append(static_cast<UChar32>(' '));
    } else if (split_chinese && is_chinese(c)) {
      result.append(static_cast<UChar32>(' '));
      result.append(c);
      result.append(static_cast<UChar32>(' '));
    } else if (kind != CharacterClass::kControl) {
      result.append(c);
    }
  });
  return result;
}

icu::UnicodeString without_accents(const icu::UnicodeString& text) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfd = icu::Normalizer2::getNFDInstance(status);
  TESSERA_CHECK(
      U_SUCCESS(status),
      "ICU cannot load its normalization data: {}; reinstall the ICU library (Debian: libicu-dev)",
      u_errorName(status));
  const icu::UnicodeString decomposed = nfd->normalize(text, status);
  TESSERA_CHECK(
      U_SUCCESS(status),
      "ICU cannot normalize a text of {} UTF-16 units: {}",
      text.length(),
      u_errorName(status));
  icu::UnicodeString result;
  for_each_code_point(decomposed, [&](UChar32 c) {
    if (character_class(c) != CharacterClass::kMark) {
      result.append(c);
    }
  });
  return result;
}

icu::UnicodeString lower_cased(const icu::UnicodeString& text) {
  icu::UnicodeString result;
  for_each_code_point(text, [&](UChar32 c) {
    result.append(u_tolower(c));
    if (c == 0x130) {
      result.append(static_cast<UChar32>(0x307)); // the one of two characters
    }
  });
  return result;
}

} // namespace

std::vector<std::string> split_bert_words(
    std::string_view text,
    const BertTextOptions& options) {
  TESSERA_CHECK(
      text.size() < (std::size_t{1} << 28),
      "a text of {} bytes is too long to tokenize at once; split it into documents of less than 256 MiB",
      text.size());
  icu::UnicodeString normalised = cleaned(text, options.split_chinese);
  if (options.strip_accents) {
    normalised = without_accents(normalised);
  }
  if (options.lower_case) {
    normalised = lower_cased(normalised);
  }

  std::vector<std::string> words;
  bool in_word = false;
  for_each_code_point(normalised, [&](UChar32 c) {
    const CharacterClass kind = character_class(c);
    if (kind == CharacterClass::kSpace) {
      in_word = false;
      return;
    }
    if (!in_word || kind == CharacterClass::kPunctuation) {
      words.emplace_back();
    }
    in_word = kind != CharacterClass::kPunctuation;
    icu::UnicodeString(c).toUTF8String(words.back());
  });
  return words;
}

} // namespace tessera::zoo
