// SPDX-License-Identifier: Apache-2.0
#pragma once
// `WordPiece` splits one word into tokens of the vocabulary.

#include "tessera/zoo/tokenizer/vocabulary.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

struct WordPieceOptions {
  std::string unk_token = "[UNK]";
  /// Prefix of tokens that do not begin a word.
  std::string continuing_prefix = "##";
  /// A word longer than this (in code points) becomes the unknown token.
  std::int64_t max_characters_per_word = 100;
};

/// Greedy longest match from the left (arXiv:1609.08144, section 4.1). A word
/// that cannot be covered becomes a single unknown token.
class WordPiece {
 public:
  /// @throws Error if the vocabulary lacks the unknown token.
  WordPiece(Vocabulary vocabulary, WordPieceOptions options);

  /// Appends the token ids of `word` (valid UTF-8, not empty).
  void append(std::string_view word, std::vector<std::int64_t>& ids) const;

  const Vocabulary& vocabulary() const {
    return vocabulary_;
  }

 private:
  Vocabulary vocabulary_;
  WordPieceOptions options_;
  std::int64_t unk_id_;
};

} // namespace tessera::zoo
