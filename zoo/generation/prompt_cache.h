// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PromptCache` keeps what a model has read of one text for the next prompt,
// which may begin like it.

#include "tessera/zoo/layers/key_value_cache.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tessera::zoo {

/// For generate(): the prompts of a conversation, each of which has those
/// before it, are read from where they differ. For one model, one prompt at a
/// time, and this rank's part of it; every rank has its own.
class PromptCache {
 public:
  /// The keys and values of the longest beginning of `prompt` that was read
  /// before; of none but its last token. This object is then empty.
  KeyValueCache take(std::span<const int64_t> prompt, int64_t capacity);

  /// Keeps the keys and values of a text.
  /// @param tokens cache.length() of them or more.
  void put(KeyValueCache cache, std::span<const int64_t> tokens);

  /// The number of tokens that generate() has given to the model since this
  /// object was made.
  int64_t read_tokens() const {
    return read_tokens_;
  }
  void add_read(int64_t tokens) {
    read_tokens_ += tokens;
  }

 private:
  std::optional<KeyValueCache> cache_;
  std::vector<int64_t> tokens_; ///< those in cache_
  int64_t read_tokens_ = 0;
};

} // namespace tessera::zoo
