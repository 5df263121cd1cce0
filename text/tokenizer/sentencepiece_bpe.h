// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SentencePieceBpe` is byte pair encoding as sentencepiece has it: any two
// neighbors that are a piece together are merged, those of the highest score
// first.

#include "tessera/text/tokenizer/bpe_merges.h"
#include "tessera/text/tokenizer/byte_trie.h"
#include "tessera/text/tokenizer/cached_token_model.h"
#include "tessera/text/tokenizer/sentencepiece_model.h"

#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::text {

/// Without merges it is sentencepiece's model of characters.
class SentencePieceBpe : public CachedTokenModel {
 public:
  /// @param unk of characters that are no pieces.
  SentencePieceBpe(
      Vocabulary&& vocabulary,
      const SentencePieceModel& model,
      uint32_t unk);

 protected:
  std::unique_ptr<Scratch> make_scratch() const override;
  void divide(
      std::string_view word,
      Scratch& scratch,
      std::vector<WordToken>& tokens) const override;

 private:
  struct Work;
  /// What merges apply to: a piece (its id is the symbol's number), a character
  /// of pieces that is none, a user-defined piece where it was found as such,
  /// or any other character.
  struct Symbol {
    uint32_t token = 0;
    uint32_t bytes = 0; ///< 0: of any other character
    bool is_unused = false;
  };

  uint32_t add_symbol(uint32_t token, size_t bytes);
  void add_characters(const SentencePieceModel& model);
  void add_merges(const SentencePieceModel& model);
  void append_symbol(
      uint32_t symbol,
      ByteRange range,
      std::string_view word,
      const Work& work,
      std::vector<WordToken>& tokens) const;

  uint32_t unk_;
  std::vector<std::optional<uint32_t>> byte_tokens_; ///< empty: no fallback
  std::vector<Symbol> symbols_;
  uint32_t other_character_ = 0;
  std::unordered_map<char32_t, uint32_t> characters_;
  ByteTrie user_defined_; ///< with their symbols
  BpeMerges merges_;
};

} // namespace tessera::text
