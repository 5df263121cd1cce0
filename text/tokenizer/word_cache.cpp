// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/word_cache.h"

#include <algorithm>

namespace tessera::text {
namespace {

constexpr size_t kFewestSlots = 1 << 9;
constexpr size_t kMostSlots = 1 << 17;
constexpr size_t kMostBytes = 1 << 20;

} // namespace

WordCache::Slot& WordCache::free_slot(uint64_t hash) {
  const size_t mask = slots_.size() - 1;
  size_t seat = hash & mask;
  while (slots_[seat].word_bytes != 0) {
    seat = (seat + 1) & mask;
  }
  return slots_[seat];
}

void WordCache::insert(
    std::string_view word,
    uint64_t hash,
    std::span<const WordToken> tokens) {
  const bool is_full = 2 * used_ >= slots_.size();
  if (words_.size() >= kMostBytes || (is_full && slots_.size() == kMostSlots)) {
    std::fill(slots_.begin(), slots_.end(), Slot());
    used_ = 0;
    words_.clear();
    tokens_.clear();
  } else if (is_full) {
    std::vector<Slot> old(std::max(kFewestSlots, 4 * slots_.size()));
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.word_bytes != 0) {
        free_slot(slot.hash) = slot;
      }
    }
  }
  free_slot(hash) = {
      .hash = hash,
      .word = static_cast<uint32_t>(words_.size()),
      .tokens = static_cast<uint32_t>(tokens_.size()),
      .word_bytes = static_cast<uint16_t>(word.size()),
      .token_count = static_cast<uint16_t>(tokens.size())};
  ++used_;
  words_.append(word);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

} // namespace tessera::text
