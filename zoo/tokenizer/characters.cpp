// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tokenizer/characters.h"

#include <unicode/uchar.h>
#include <unicode/uscript.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace tessera::zoo {

namespace {

// [Note: Unicode 8]
// The `tokenizers` library, with which the published checkpoints are used, has
// several tables of Unicode, each of another version, whatever the version of
// the texts. BERT's categories are those of Unicode 8: later characters are
// letters, never marks, punctuation or control characters. The normal forms
// know Unicode 9. We ask ICU for the age of a character and do the same, so
// that ids do not depend on the version of ICU. Where the library is newer than
// ICU (digits, letters and lower case of Unicode 15 to 17), tables below have
// the rest.

/// Characters that Unicode got after `version` and those not assigned yet.
bool is_newer_than(char32_t c, int version) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return age[0] > version || age[0] == 0;
}

enum class CharacterClass { kLetter, kControl, kSpace, kMark, kPunctuation };

CharacterClass character_class(char32_t c) {
  if (c < 0x80) {
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      return CharacterClass::kSpace;
    }
    if (c < ' ' || c == 0x7f) {
      return CharacterClass::kControl;
    }
    const bool is_alphanumeric = (c >= '0' && c <= '9') ||
                                 (c >= 'A' && c <= 'Z') ||
                                 (c >= 'a' && c <= 'z');
    // Symbols such as '$' and '+' are punctuation too.
    return is_alphanumeric ? CharacterClass::kLetter
                           : CharacterClass::kPunctuation;
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
  const uint32_t category = U_GET_GC_MASK(static_cast<UChar32>(c));
  const auto is = [&](uint32_t mask) { return (category & mask) != 0; };
  if (is(U_GC_L_MASK | U_GC_N_MASK | U_GC_S_MASK) || is_newer_than(c, 8)) {
    return CharacterClass::kLetter;
  }
  if (is(U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK | U_GC_CS_MASK)) {
    return CharacterClass::kControl;
  }
  if (is(U_GC_Z_MASK)) {
    return CharacterClass::kSpace;
  }
  if (is(U_GC_MN_MASK)) {
    return CharacterClass::kMark;
  }
  return is(U_GC_P_MASK) ? CharacterClass::kPunctuation
                         : CharacterClass::kLetter;
}

template <size_t kCount>
bool is_within(char32_t c, const CodePoints (&runs)[kCount]) {
  const auto* const next = std::upper_bound(
      std::begin(runs),
      std::end(runs),
      c,
      [](char32_t value, const CodePoints& run) { return value < run.first; });
  return next != std::begin(runs) && c <= std::prev(next)->last;
}

} // namespace

bool is_numeric(char32_t c) {
  if (c < 0x80) {
    return c >= '0' && c <= '9';
  }
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_N_MASK) != 0;
}

bool is_word_character(char32_t c) {
  if (c < 0x80) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
           (c >= 'a' && c <= 'z') || c == '_';
  }
  const auto code_point = static_cast<UChar32>(c);
  return (U_GET_GC_MASK(code_point) &
          (U_GC_L_MASK | U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
         u_hasBinaryProperty(code_point, UCHAR_ALPHABETIC) ||
         u_hasBinaryProperty(code_point, UCHAR_JOIN_CONTROL);
}

bool is_punctuation(char32_t c) {
  return character_class(c) == CharacterClass::kPunctuation;
}

bool is_control(char32_t c) {
  return character_class(c) == CharacterClass::kControl;
}

bool is_nonspacing_mark(char32_t c) {
  return c >= 0x300 && character_class(c) == CharacterClass::kMark;
}

bool is_of_unicode_9(char32_t c) {
  return !is_newer_than(c, 9);
}

bool is_combining_mark(char32_t c) {
  if (c < 0x300) {
    return false;
  }
  if (c == 0x1cf2 || c == 0x1cf3) {
    return true; // letters since
  }
  // Became a mark since.
  return c != 0x111c9 &&
         (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_M_MASK) != 0 &&
         is_of_unicode_9(c);
}

bool is_chinese(char32_t c) {
  static constexpr CodePoints kRuns[] = {
      {0x3400, 0x4dbf},
      {0x4e00, 0x9fff},
      {0xf900, 0xfaff},
      {0x20000, 0x2a6df},
      {0x2a700, 0x2b73f},
      {0x2b740, 0x2b81f},
      {0x2b920, 0x2ceaf},
      {0x2f800, 0x2fa1f}};
  return c >= kRuns[0].first && is_within(c, kRuns);
}

char32_t lower_case(char32_t c) {
  if (c < 0x80) {
    return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
  }
  return static_cast<char32_t>(u_tolower(static_cast<UChar32>(c)));
}

int32_t script_of(char32_t c) {
  if (c == ' ') {
    return kAnyScript;
  }
  UErrorCode status = U_ZERO_ERROR;
  const UScriptCode script =
      c == 0x30fc ? USCRIPT_HAN
                  : uscript_getScript(static_cast<UChar32>(c), &status);
  switch (script) {
    case USCRIPT_HIRAGANA:
    case USCRIPT_KATAKANA:
      return USCRIPT_HAN;
    case USCRIPT_UNKNOWN:
      return kAnyScript;
    default:
      return script;
  }
}

bool is_ascii(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, text.data() + i, 8);
    if ((bytes & 0x8080808080808080) != 0) {
      return false;
    }
  }
  return std::all_of(text.begin() + i, text.end(), [](char byte) {
    return static_cast<unsigned char>(byte) < 0x80;
  });
}

} // namespace tessera::zoo
