// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BpeMerges` are the merges of byte pair encoding and their application to a
// word.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::text {

/// A part of a word: a character at first, then what merges made of it.
struct BpeSymbol {
  uint32_t id = 0;
  uint32_t bytes = 0; ///< of the word
  uint32_t previous = 0;
  uint32_t next = 0;
  uint32_t rank = 0; ///< of the merge with the next one
  uint32_t merged = 0; ///< the id that this merge makes
};

/// A word under division, kept between words for its memory.
struct BpeWord {
  std::vector<BpeSymbol> symbols;
  std::vector<uint64_t> queue;

  void add(uint32_t id, uint32_t bytes) {
    symbols.push_back({.id = id, .bytes = bytes});
  }
};

/// Merges adjacent symbols in the order of the merges' ranks, those of a rank
/// from left to right (arXiv:1508.07909). Pairs are found in an open-addressing
/// hash table.
class BpeMerges {
 public:
  static constexpr uint32_t kNone = 0xffffffff;

  /// @param count how many there will be at most.
  void reserve(size_t count);
  /// The last merge of a pair counts.
  void add(uint32_t left, uint32_t right, uint32_t rank, uint32_t merged);

  /// Merges the symbols of `word`, after which the first one and its followers
  /// by `next`, up to kNone, are left. Calls on_pair(left id, right id, merged
  /// id) for each pair of neighbors that has a merge, applied or not.
  template <typename OnPair>
  void apply(BpeWord& word, const OnPair& on_pair) const {
    auto& symbols = word.symbols;
    auto& queue = word.queue; // rank << 32 | symbol; the least one first
    queue.clear();
    const auto look_up = [&](uint32_t i) {
      BpeSymbol& symbol = symbols[i];
      symbol.rank = kNone;
      if (symbol.next == kNone) {
        return;
      }
      const uint32_t right = symbols[symbol.next].id;
      const Pair& pair = find(symbol.id, right);
      if (pair.key != kFree) {
        symbol.rank = pair.rank;
        symbol.merged = pair.merged;
        queue.push_back(uint64_t{pair.rank} << 32 | i);
        on_pair(symbol.id, right, pair.merged);
      }
    };
    const auto count = static_cast<uint32_t>(symbols.size());
    for (uint32_t i = 0; i < count; ++i) {
      symbols[i].previous = i == 0 ? kNone : i - 1;
      symbols[i].next = i + 1 == count ? kNone : i + 1;
    }
    for (uint32_t i = 0; i < count; ++i) {
      look_up(i);
    }
    std::make_heap(queue.begin(), queue.end(), std::greater<>());
    const auto push = [&](uint32_t i) {
      const size_t before = queue.size();
      look_up(i);
      if (queue.size() > before) {
        std::push_heap(queue.begin(), queue.end(), std::greater<>());
      }
    };
    while (!queue.empty()) {
      std::pop_heap(queue.begin(), queue.end(), std::greater<>());
      const uint64_t top = queue.back();
      queue.pop_back();
      const auto i = static_cast<uint32_t>(top);
      BpeSymbol& symbol = symbols[i];
      if (symbol.rank != top >> 32) {
        continue; // one of the two has been merged with another since
      }
      BpeSymbol& right = symbols[symbol.next];
      symbol.id = symbol.merged;
      symbol.bytes += right.bytes;
      symbol.next = right.next;
      right.rank = kNone;
      if (symbol.next != kNone) {
        symbols[symbol.next].previous = i;
      }
      if (symbol.previous != kNone) {
        push(symbol.previous);
      }
      push(i);
    }
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Pair {
    uint64_t key = kFree; ///< left << 32 | right
    uint32_t rank = 0;
    uint32_t merged = 0;
  };

  /// The pair, or the free place for it.
  const Pair& find(uint32_t left, uint32_t right) const {
    const uint64_t key = uint64_t{left} << 32 | right;
    size_t seat = (key * 0x9e3779b97f4a7c15U) >> shift_;
    while (pairs_[seat].key != key && pairs_[seat].key != kFree) {
      seat = (seat + 1) & (pairs_.size() - 1);
    }
    return pairs_[seat];
  }

  std::vector<Pair> pairs_ = std::vector<Pair>(2); ///< a power of two
  int shift_ = 63;
};

} // namespace tessera::text
