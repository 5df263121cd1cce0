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

  /// Offset of a free range of at least `bytes`, the lowest there is, or
  /// nothing when no range is large enough.
  std::optional<int64_t> allocate(int64_t bytes);

  /// Gives back a range that allocate() returned.
  void release(int64_t offset);

  int64_t capacity_bytes() const {
    return capacity_;
  }

 private:
  int64_t capacity_;
  std::map<int64_t, int64_t> used_; ///< offset -> bytes
};

} // namespace tessera
