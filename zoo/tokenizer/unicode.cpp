// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tokenizer/unicode.h"

#include <unicode/uchar.h>

namespace tessera::zoo {

bool is_white_space(char32_t c) {
  return c < 0x80 ? c == ' ' || (c >= '\t' && c <= '\r')
                  : u_isUWhiteSpace(static_cast<UChar32>(c)) != 0;
}

bool is_word_character(char32_t c) {
  const auto own = static_cast<UChar32>(c);
  return u_isUAlphabetic(own) != 0 ||
         u_hasBinaryProperty(own, UCHAR_JOIN_CONTROL) != 0 ||
         (U_GET_GC_MASK(own) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) !=
             0;
}

} // namespace tessera::zoo
