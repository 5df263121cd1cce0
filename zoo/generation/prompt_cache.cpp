// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/prompt_cache.h"

#include <algorithm>
#include <utility>

namespace tessera::zoo {

KeyValueCache PromptCache::take(
    std::span<const int64_t> prompt,
    int64_t capacity) {
  if (!cache_) {
    return KeyValueCache(capacity);
  }
  // The last token is read again: its logits are those of the next one.
  const auto last = prompt.empty() ? prompt.end() : prompt.end() - 1;
  const auto common =
      std::mismatch(prompt.begin(), last, tokens_.begin(), tokens_.end());
  KeyValueCache cache = std::move(*cache_);
  cache_.reset();
  tokens_.clear();
  cache.resize(common.first - prompt.begin(), capacity);
  return cache;
}

void PromptCache::put(KeyValueCache cache, std::span<const int64_t> tokens) {
  const auto read = tokens.first(static_cast<size_t>(cache.length()));
  tokens_.assign(read.begin(), read.end());
  cache_.emplace(std::move(cache));
}

} // namespace tessera::zoo
