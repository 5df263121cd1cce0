// SPDX-License-Identifier: Apache-2.0
#pragma once
// split_bert_words() is BERT's text normalization and pre-tokenization: it
// cleans and normalizes text and splits it at white space and punctuation,
// before WordPiece.

#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

/// Options of text normalization.
struct BertTextOptions {
  /// Maps every character to lower case, regardless of its neighbors (a final
  /// sigma becomes a regular one).
  bool lower_case = true;
  /// Decomposes (NFD) and drops non-spacing marks: "é" becomes "e".
  bool strip_accents = true;
  /// Makes every CJK ideograph a word of its own.
  bool split_chinese = true;
};

/// Splits UTF-8 text into normalized words, in order. Control characters and
/// U+FFFD are dropped, any white space separates words, and every punctuation
/// character is a word of its own. Invalid UTF-8 is read as U+FFFD, and so is
/// dropped; no text makes this throw.
std::vector<std::string> split_bert_words(
    std::string_view text,
    const BertTextOptions& options);

} // namespace tessera::zoo
