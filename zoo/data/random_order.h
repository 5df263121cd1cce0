// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RandomOrder` is an order of numbers that needs no memory.

#include "tessera/runtime/random/mixed_bits.h"

#include <cstdint>

namespace tessera::zoo {

/// A permutation of 0 .. count - 1, a function of the key alone: a Feistel
/// network over the next power of 4, applied until the result is in range.
class RandomOrder {
 public:
  RandomOrder(int64_t count, uint64_t key)
      : count_(static_cast<uint64_t>(count)), key_(key) {
    while ((uint64_t{1} << (2 * half_bits_)) < count_) {
      ++half_bits_;
    }
  }

  /// @param position in 0 .. count - 1.
  int64_t operator[](int64_t position) const {
    auto at = static_cast<uint64_t>(position);
    do {
      at = shuffled(at);
    } while (at >= count_);
    return static_cast<int64_t>(at);
  }

 private:
  uint64_t shuffled(uint64_t at) const {
    constexpr uint64_t kRounds = 6;
    const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t left = at >> half_bits_;
    uint64_t right = at & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed =
          runtime::split_mix(
              key_ + runtime::split_mix(right * kRounds + round)) &
          mask;
      const uint64_t next = left ^ mixed;
      left = right;
      right = next;
    }
    return left << half_bits_ | right;
  }

  uint64_t count_;
  uint64_t key_;
  int half_bits_ = 0;
};

} // namespace tessera::zoo
