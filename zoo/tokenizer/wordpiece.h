// SPDX-License-Identifier: Apache-2.0
#pragma once
// WordPiece: one word into pieces of the vocabulary.

#include "tessera/zoo/tokenizer/vocabulary.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

struct WordPieceOptions {
  std::string unk_token = "[UNK]";
  /// Marks a piece that does not begin a word.
  std::string continuing_prefix = "##";
  /// A longer word (in code points) is unknown as a whole.
  std::int64_t max_characters_per_word = 100;
};

/// Greedy longest match from the left (arXiv:1609.08144, section 4.1). A word
/// that can not be covered is the unknown token as a whole.
class WordPiece {
 public:
  /// @throws Error when the vocabulary lacks the unknown token.
  WordPiece(Vocabulary vocabulary, WordPieceOptions options);

  /// Appends the ids of the pieces of `word` (valid UTF-8, not empty).
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
