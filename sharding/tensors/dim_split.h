// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DimSplit` divides a dimension of a tensor into consecutive parts, one per
// rank.

#include <cstdint>
#include <string>

namespace tessera::sharding {

/// Divides a dimension of `size` elements into `parts` parts of whole units. If
/// they do not divide evenly, the first parts have one unit more.
class DimSplit {
 public:
  /// @param unit number of consecutive elements that stay together, such as
  ///   those of one head.
  /// @throws tessera::Error when `size` is not a multiple of `unit`, or there
  ///   are fewer units than parts.
  DimSplit(int64_t size, int parts, int64_t unit = 1);

  int64_t size() const {
    return size_;
  }
  int parts() const {
    return parts_;
  }
  int64_t unit() const {
    return unit_;
  }
  int64_t begin(int part) const;
  int64_t length(int part) const {
    return begin(part + 1) - begin(part);
  }
  /// Returns the length of the longest part.
  int64_t longest() const {
    return length(0);
  }
  bool is_even() const {
    return longest() * parts_ == size_;
  }

 private:
  int64_t size_;
  int parts_;
  int64_t unit_;
};

/// Returns the divisors of `number`, e.g. "1, 2, 3, 6", for messages.
std::string divisors_of(int64_t number);

} // namespace tessera::sharding
