// SPDX-License-Identifier: Apache-2.0
#pragma once
// `WordCache` remembers the tokens of words.

#include "tessera/text/tokenizer/token_model.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

/// A hash table that is emptied when it has 2^16 words or 1 MiB of them: the
/// frequent words of a text are soon there again.
class WordCache {
 public:
  static constexpr size_t kLongestWordBytes = 256;

  static uint64_t hash_of(std::string_view word) {
    return std::hash<std::string_view>{}(word);
  }

  /// The tokens are valid until insert().
  std::optional<std::span<const WordToken>> find(
      std::string_view word,
      uint64_t hash) const {
    if (slots_.empty()) {
      return std::nullopt;
    }
    const size_t mask = slots_.size() - 1;
    for (size_t seat = hash & mask; slots_[seat].word_bytes != 0;
         seat = (seat + 1) & mask) {
      const Slot& slot = slots_[seat];
      if (slot.hash == hash && slot.word_bytes == word.size() &&
          word == std::string_view(words_).substr(slot.word, word.size())) {
        return std::span(tokens_).subspan(slot.tokens, slot.token_count);
      }
    }
    return std::nullopt;
  }

  /// @param word 1 to kLongestWordBytes that are not in the cache.
  void insert(
      std::string_view word,
      uint64_t hash,
      std::span<const WordToken> tokens);

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t word = 0; ///< its first byte
    uint32_t tokens = 0; ///< the first one
    uint16_t word_bytes = 0; ///< 0: free
    uint16_t token_count = 0;
  };

  Slot& free_slot(uint64_t hash);

  std::vector<Slot> slots_; ///< a power of two; at most half are used
  size_t used_ = 0;
  std::string words_;
  std::vector<WordToken> tokens_;
};

} // namespace tessera::text
