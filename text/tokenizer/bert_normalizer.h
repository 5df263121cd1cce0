// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BertNormalizer` and `BertPreTokenizer` are BERT's text normalization and
// pre-tokenization.

#include "tessera/text/tokenizer/normalizer.h"
#include "tessera/text/tokenizer/pre_tokenizer.h"

namespace tessera::text {

class BertNormalizer : public Normalizer {
 public:
  struct Options {
    /// Drops control characters and U+FFFD, and makes all white space " ".
    bool clean_text = true;
    /// Puts a space before and after each Chinese ideograph.
    bool handle_chinese_chars = true;
    /// Decomposes (NFD) and drops non-spacing marks: "é" becomes "e".
    bool strip_accents = true;
    /// Maps every character to lower case, regardless of its neighbors (a final
    /// sigma becomes a regular one).
    bool lowercase = true;
  };
  explicit BertNormalizer(const Options& options) : options_(options) {}
  void apply(AlignedText& text) const override;

 private:
  Options options_;
};

/// Divides at white space, which is removed, and makes each punctuation
/// character a word.
class BertPreTokenizer : public PreTokenizer {
 public:
  void apply(AlignedText& text) const override;
};

} // namespace tessera::text
