// SPDX-License-Identifier: Apache-2.0
#pragma once
// First-fit allocation of byte ranges in a buffer of fixed capacity.
// Pure arithmetic and deterministic: the same calls give the same offsets, so a
// plan that was simulated with it comes true at run time.

#include <cstdint>
#include <map>
#include <optional>

namespace tessera {

class OffsetAllocator {
 public:
  /// Sizes are rounded up to this many bytes.
  static constexpr int64_t kAlignment = 64;

  explicit OffsetAllocator(int64_t capacity_bytes);

  /// Which of the ranges that are large enough.
  enum class End { kLow, kHigh };

  /// Offset of a free range of at least `bytes`, the lowest there is (or the
  /// highest), or nothing when no range is large enough. Where one range is
  /// released before the next but one comes, taking the ends in turn needs no
  /// more than the largest sum of two neighbours, whatever their sizes.
  std::optional<int64_t> allocate(int64_t bytes, End end = End::kLow);

  /// Gives back a range that allocate() returned.
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

} // namespace tessera
