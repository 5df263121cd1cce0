// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/bpe_merges.h"

#include <bit>

namespace tessera::text {

void BpeMerges::reserve(size_t count) {
  // At most two thirds are used: searches for pairs that have no merge, the
  // most frequent ones, end soon.
  pairs_.assign(std::bit_ceil(count + count / 2 + 2), Pair());
  shift_ = 64 - std::countr_zero(pairs_.size());
}

void BpeMerges::add(
    uint32_t left,
    uint32_t right,
    uint32_t rank,
    uint32_t merged) {
  const Pair& slot = find(left, right);
  pairs_[static_cast<size_t>(&slot - pairs_.data())] = {
      .key = uint64_t{left} << 32 | right, .rank = rank, .merged = merged};
}

} // namespace tessera::text
