// SPDX-License-Identifier: Apache-2.0
#pragma once
// Raw text to BERT's words: cleaning, normalisation, and the split at spaces
// and punctuation that comes before WordPiece.

#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

/// How text is normalised before it is split.
struct BertTextOptions {
  /// Maps every character to lower case, without regard to its neighbours
  /// (a final sigma is a sigma).
  bool lower_case = true;
  /// Decomposes (NFD) and drops non-spacing marks: "é" becomes "e".
  bool strip_accents = true;
  /// Makes every CJK ideograph a word of its own.
  bool split_chinese = true;
};

/// Splits UTF-8 text into normalised words, in order. Control characters and
/// U+FFFD vanish, every kind of white space separates, every punctuation
/// character is a word of its own. Bytes that are not valid UTF-8 read as
/// U+FFFD, and so vanish; nothing throws on account of the text.
std::vector<std::string> split_bert_words(
    std::string_view text,
    const BertTextOptions& options);

} // namespace tessera::zoo
