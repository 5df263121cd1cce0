// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OffsetAllocator` allocates byte ranges in a buffer of fixed capacity, first
// fit. Plain arithmetic and deterministic: the same calls give the same
// offsets, so a plan that was simulated with it holds at run time.

#include <cstdint>
#include <map>
#include <optional>

namespace tessera::runtime {

class OffsetAllocator {
 public:
  /// Sizes are rounded up to a multiple of this.
  static constexpr int64_t kAlignment = 64;

  explicit OffsetAllocator(int64_t capacity_bytes);

  /// The end of the buffer at which the search starts.
  enum class End { kLow, kHigh };

  /// Offset of the lowest (or highest) place for at least `bytes`, or no value
  /// if no free range is large enough. If each range is released before the
  /// next but one is allocated, alternating between the ends needs no more
  /// capacity than the largest sum of two consecutive sizes.
  std::optional<int64_t> allocate(int64_t bytes, End end = End::kLow);

  /// Releases a range that allocate() returned.
  /// @throws tessera::Error when no range begins at `offset`.
  void release(int64_t offset);

  int64_t capacity_bytes() const {
    return capacity_;
  }

 private:
  std::optional<int64_t> find_low(int64_t needed) const;
  std::optional<int64_t> find_high(int64_t needed) const;

  int64_t capacity_;
  std::map<int64_t, int64_t> used_; ///< offset -> bytes
};

} // namespace tessera::runtime
