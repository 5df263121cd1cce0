// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/encoding.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <utility>

namespace tessera::text {

namespace {

int64_t length_of(const TokenSequence& text) {
  return static_cast<int64_t>(text.size());
}

void shorten(TokenSequence& text, int64_t length, Side side) {
  if (length >= length_of(text)) {
    return;
  }
  if (side == Side::kRight) {
    text.resize(static_cast<size_t>(length));
  } else {
    text.erase(text.begin(), text.end() - length);
  }
}

/// The lengths of two texts of `a` and `b` tokens: the longer one is shortened
/// first, then both equally, where the longer one keeps an odd token.
std::pair<int64_t, int64_t> longest_first(int64_t a, int64_t b, int64_t limit) {
  int64_t shorter = std::min(a, b);
  int64_t longer =
      shorter > limit ? shorter : std::max(shorter, limit - shorter);
  if (shorter + longer > limit) {
    shorter = limit / 2;
    longer = limit - shorter;
  }
  return a > b ? std::pair(longer, shorter) : std::pair(shorter, longer);
}

} // namespace

bool truncate(
    TokenSequence& first,
    TokenSequence* second,
    int64_t max_tokens,
    const Truncation& truncation) {
  const int64_t all =
      length_of(first) + (second == nullptr ? 0 : length_of(*second));
  if (all <= max_tokens) {
    return false;
  }
  if (truncation.strategy == TruncationStrategy::kLongestFirst) {
    if (second == nullptr) {
      shorten(first, max_tokens, truncation.side.value_or(Side::kRight));
    } else {
      const auto [a, b] =
          longest_first(length_of(first), length_of(*second), max_tokens);
      shorten(first, a, truncation.side.value_or(Side::kRight));
      shorten(*second, b, truncation.side.value_or(Side::kRight));
    }
    return true;
  }
  const bool is_first = truncation.strategy == TruncationStrategy::kOnlyFirst;
  TokenSequence* text = is_first ? &first : second;
  const int64_t self_length = text == nullptr ? 0 : length_of(*text);
  const int64_t left = self_length - (all - max_tokens);
  TESSERA_CHECK(
      text != nullptr && left > 0,
      "the {} text has {} tokens, but {} would have to be taken from it to leave {}. Truncate both texts (longest first), or give a greater max_length.",
      is_first ? "first" : "second",
      self_length,
      all - max_tokens,
      max_tokens);
  shorten(*text, left, truncation.side.value_or(Side::kRight));
  return true;
}

std::vector<TokenSequence> make_windows(
    const TokenSequence& text,
    int64_t window,
    int64_t overlap) {
  TESSERA_CHECK(
      overlap >= 0 && overlap < window,
      "windows of {} tokens cannot overlap by {}: give an overlap of at least 0 and less than the window.",
      window,
      overlap);
  std::vector<TokenSequence> windows;
  int64_t begin = 0;
  do {
    const int64_t end = std::min(begin + window, length_of(text));
    windows.emplace_back(text.begin() + begin, text.begin() + end);
    begin += window - overlap;
  } while (begin + overlap < length_of(text));
  return windows;
}

} // namespace tessera::text
