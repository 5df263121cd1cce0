// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/characters.h"

#include "tessera/text/tokenizer/recent_characters.h"

#include <unicode/uchar.h>
#include <unicode/uscript.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace tessera::text {

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

/// Of letters of Unicode 16 and 17; see [Note: Unicode 8].
char32_t recent_lower_case(char32_t c) {
  switch (c) {
    case 0xa7cb:
      return 0x264;
    case 0xa7dc:
      return 0x19b;
    case 0x1c89:
    case 0xa7cc:
    case 0xa7ce:
    case 0xa7d2:
    case 0xa7d4:
    case 0xa7da:
      return c + 1;
    default:
      return c >= 0x10d50 && c <= 0x10d65   ? c + 0x20
             : c >= 0x16ea0 && c <= 0x16eb8 ? c + 0x1b
                                            : c;
  }
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
  if ((U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_N_MASK) != 0) {
    return true;
  }
  const char* const recent = recent_category(c);
  return (recent != nullptr && recent[0] == 'N') ||
         (c >= 0x11de0 && c <= 0x11de9) || (c >= 0x16ff4 && c <= 0x16ff6);
}

bool is_word_character(char32_t c) {
  if (c < 0x80) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
           (c >= 'a' && c <= 'z') || c == '_';
  }
  const auto code_point = static_cast<UChar32>(c);
  if (const char* const recent = recent_category(c)) {
    return recent[0] == 'L' || recent[0] == 'M' ||
           std::string_view(recent) == "Nd";
  }
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
  const auto lower = static_cast<char32_t>(u_tolower(static_cast<UChar32>(c)));
  return lower == c && c >= 0x1c89 ? recent_lower_case(c) : lower;
}

int32_t script_of(char32_t c) {
  switch (c) {
    case ' ':
      return kAnyScript;
    case 0x30fc:
      return USCRIPT_HAN;
    case 0x589:
    case 0x61c:
      return USCRIPT_COMMON; // Armenian and Arabic since
    case 0x953:
    case 0x954:
      return USCRIPT_DEVANAGARI; // inherited since
    default:
      break;
  }
  if (c >= 0x80 && !is_of_unicode_9(c)) {
    return kAnyScript;
  }
  UErrorCode status = U_ZERO_ERROR;
  const UScriptCode script =
      uscript_getScript(static_cast<UChar32>(c), &status);
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

} // namespace tessera::text
