// SPDX-License-Identifier: Apache-2.0
#pragma once
// `WordPiece` splits one word into tokens of the vocabulary.

#include "tessera/text/tokenizer/cached_token_model.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

struct WordPieceOptions {
  bool has_bytes = false; ///< words consist of bytes
  std::string unk_token = "[UNK]";
  /// Prefix of tokens that do not begin a word.
  std::string continuing_prefix = "##";
  /// A word longer than this (in code points) becomes the unknown token.
  int64_t max_characters_per_word = 100;
};

/// Greedy longest match from the left (arXiv:1609.08144, section 4.1). A word
/// that cannot be covered becomes a single unknown token.
class WordPiece : public CachedTokenModel {
 public:
  WordPiece(Vocabulary vocabulary, WordPieceOptions options);

 protected:
  std::unique_ptr<Scratch> make_scratch() const override;
  void divide(
      std::string_view word,
      Scratch& scratch,
      std::vector<WordToken>& tokens) const override;

 private:
  struct Work;

  bool append_pieces(
      std::string_view word,
      std::string& candidate,
      std::vector<WordToken>& tokens) const;

  WordPieceOptions options_;
  std::optional<uint32_t> unk_id_;
};

} // namespace tessera::text
