// SPDX-License-Identifier: Apache-2.0
#pragma once
// One dimension of a tensor in consecutive parts, one for each rank.

#include <cstdint>
#include <string>

namespace tessera {

/// A dimension of `size` elements in `parts` parts, of whole units. Where they
/// do not divide evenly, the first parts have one unit more.
class DimSplit {
 public:
  /// @param unit elements that stay together, such as those of one head.
  /// @throws tessera::Error when the units do not make up the dimension, or
  ///     there are fewer of them than parts.
  DimSplit(int64_t size, int parts, int64_t unit = 1);

  int64_t size() const {
    return size_;
  }
  int parts() const {
    return parts_;
  }
  int64_t begin(int part) const;
  int64_t length(int part) const {
    return begin(part + 1) - begin(part);
  }
  /// Of all parts.
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

/// "1, 2, 3, 6": what divides `number`, for messages.
std::string divisors_of(int64_t number);

} // namespace tessera
