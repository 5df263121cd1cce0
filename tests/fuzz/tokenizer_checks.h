// SPDX-License-Identifier: Apache-2.0
#pragma once
// use_tokenizer() is what fuzzed tokenizers have to survive.

#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/text/tokenizer/utf8.h"

#include <cstdlib>
#include <string>
#include <string_view>

namespace tessera {

/// A text with something for every kind of tokenizer: spaces, numbers,
/// contractions, accents, Chinese, emoji, a control character and a byte that
/// is not UTF-8.
inline constexpr std::string_view kHardText =
    "  It's 3,141 caf\u00e9s\n\tna\u00efve \u4e2d\u6587\u3002 \U0001f44d\U0001f3fd "
    "<s> [MASK]\x01 \xff x_y";

/// Encodes and decodes; ids must be tokens, and places must be in the text.
inline void use_tokenizer(
    const text::Tokenizer& tokenizer,
    std::string_view text) {
  const text::Encoding encoding = tokenizer.encode_pair(
      text, text, {.truncation = {.max_length = 64}, .with_offsets = true});
  std::string storage;
  const size_t size = text::valid_utf8(text, storage).size();
  for (const text::PlacedToken& token : encoding.tokens) {
    if (token.id < 0 || token.id >= tokenizer.size() ||
        token.bytes.end > size) {
      std::abort(); // whatever says Error is refused input
    }
  }
  tokenizer.decode(encoding.ids());
}

} // namespace tessera
