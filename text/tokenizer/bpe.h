// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Bpe` is byte pair encoding as the `tokenizers` library has it: merges are
// listed.

#include "tessera/text/tokenizer/bpe_merges.h"
#include "tessera/text/tokenizer/cached_token_model.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text {

struct BpeOptions {
  bool has_bytes = false; ///< words consist of bytes
  /// For characters that the vocabulary lacks. Without one they are left out.
  std::optional<std::string> unk_token;
  /// Of tokens of one character that do not begin a word.
  std::string continuing_prefix;
  /// Of the token of a word's last character.
  std::string end_of_word_suffix;
  /// Consecutive unknown characters become one token.
  bool fuse_unk = false;
  /// Unknown characters become the tokens of their bytes, "<0x00>" to "<0xFF>".
  bool byte_fallback = false;
  /// A word that is a token is not divided.
  bool ignore_merges = false;
};

class Bpe : public CachedTokenModel {
 public:
  /// A left and a right token and what becomes of them.
  struct Merge {
    uint32_t left = 0;
    uint32_t right = 0;
    uint32_t merged = 0;
  };

  /// @param merges the first one is applied first.
  Bpe(Vocabulary vocabulary,
      const std::vector<Merge>& merges,
      BpeOptions options);

  /// The part of the right token that a merge appends to the left one.
  static std::string_view merged_part(
      std::string_view right,
      const BpeOptions& options) {
    return right.substr(
        std::min(options.continuing_prefix.size(), right.size()));
  }

 protected:
  std::unique_ptr<Scratch> make_scratch() const override;
  void divide(
      std::string_view word,
      Scratch& scratch,
      std::vector<WordToken>& tokens) const override;

 private:
  struct Work;
  static constexpr uint32_t kNone = BpeMerges::kNone;
  /// The characters below are looked up in a table; byte_alphabet() is there.
  static constexpr size_t kTableSize = 0x180;

  uint32_t find_character(
      std::string_view character,
      bool is_first,
      bool is_last,
      std::string& written) const;
  /// The character with its prefix and suffix.
  std::string_view write(
      std::string_view character,
      bool is_first,
      bool is_last,
      std::string& written) const;
  void add_characters(std::string_view word, Work& work) const;
  bool add_bytes(std::string_view written, BpeWord& word) const;

  BpeOptions options_;
  uint32_t unk_id_ = kNone;
  std::vector<std::optional<uint32_t>> byte_tokens_;
  /// Ids of characters by whether they have a prefix (1) and a suffix (2).
  std::array<std::array<uint32_t, kTableSize>, 4> characters_;
  BpeMerges merges_;
};

} // namespace tessera::text
