// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Unigram` finds the most probable division of a word, by the tokens' scores
// (arXiv:1804.10959).

#include "tessera/text/tokenizer/byte_trie.h"
#include "tessera/text/tokenizer/cached_token_model.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace tessera::text {

/// Whose results are reproduced, where they differ.
enum class UnigramReference {
  /// Sums are float64. A run of unknown characters that is a token becomes that
  /// token.
  kTokenizers,
  /// Sums are float32.
  kSentencePiece,
};

struct UnigramOptions {
  bool has_bytes = false; ///< words consist of bytes
  UnigramReference reference = UnigramReference::kTokenizers;
  /// Of each id; nothing: the token is never found in a word.
  std::vector<std::optional<double>> scores;
  /// Of a character that is no token.
  double unk_score = 0;
  /// For runs of characters that are no tokens.
  std::optional<uint32_t> unk_id;
  /// Unknown characters become the tokens of their bytes, "<0x00>" to "<0xFF>".
  bool byte_fallback = false;
};

class Unigram : public CachedTokenModel {
 public:
  /// @param vocabulary with the ids 0 .. size - 1.
  Unigram(Vocabulary vocabulary, UnigramOptions options);

 protected:
  std::unique_ptr<Scratch> make_scratch() const override;
  void divide(
      std::string_view word,
      Scratch& scratch,
      std::vector<WordToken>& tokens) const override;

 private:
  struct Work;

  void find_best_path(std::string_view word, Work& work) const;
  void append_unknown(
      std::string_view word,
      ByteRange range,
      std::vector<WordToken>& tokens) const;
  uint32_t unk_id(std::string_view text) const;

  UnigramOptions options_;
  std::vector<std::optional<uint32_t>> byte_tokens_;
  ByteTrie trie_;
};

} // namespace tessera::text
