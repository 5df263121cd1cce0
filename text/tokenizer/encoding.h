// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TokenSequence` is a tokenized text or pair of texts; `truncate_pair()` and
// `make_windows()` shorten them.

#include "tessera/text/tokenizer/aligned_text.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::text {

/// A token with its place.
struct PlacedToken {
  int64_t id = 0;
  int64_t type_id = 0; ///< 0 for the first text, 1 for the second, by default
  /// Of the text that it comes from, in bytes; empty for tokens that a post-
  /// processor adds.
  ByteRange bytes;
  /// Bytes of white space at both ends that an added token takes with it.
  uint16_t spaces_before = 0;
  uint16_t spaces_after = 0;
  int32_t word = -1; ///< number of its word in the text; -1: it is added
  int32_t text = -1; ///< 0: the first, 1: the second; -1: it is added
};

using TokenSequence = std::vector<PlacedToken>;

enum class Side { kRight, kLeft };

enum class TruncationStrategy { kLongestFirst, kOnlyFirst, kOnlySecond };

/// How a text or pair that is too long is shortened, with the results of the
/// `tokenizers` library.
struct Truncation {
  int64_t max_length = 0; ///< tokens, added ones included; 0: no truncation
  TruncationStrategy strategy = TruncationStrategy::kLongestFirst;
  /// From which tokens are taken; nothing: as the tokenizer's files say, else
  /// the right one.
  std::optional<Side> side;
};

/// Shortens the texts of a pair, or one text, to `max_tokens` together.
/// @param second null: there is one text.
/// @return whether anything was taken away.
/// @throws tessera::Error if the strategy would leave less than no token.
bool truncate(
    TokenSequence& first,
    TokenSequence* second,
    int64_t max_tokens,
    const Truncation& truncation);

/// Consecutive parts of a text of at most `window` tokens, each of which begins
/// with the last `overlap` tokens of the part before it; at least one part.
/// @throws tessera::Error unless 0 <= overlap < window.
std::vector<TokenSequence> make_windows(
    const TokenSequence& text,
    int64_t window,
    int64_t overlap);

} // namespace tessera::text
