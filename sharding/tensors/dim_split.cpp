// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensors/dim_split.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>

namespace tessera::sharding {

DimSplit::DimSplit(int64_t size, int parts, int64_t unit)
    : size_(size), parts_(parts), unit_(unit) {
  TESSERA_CHECK(
      unit >= 1 && size >= 0 && size % unit == 0,
      "a dimension of {} elements is not a multiple of the unit, {}.",
      size,
      unit);
  TESSERA_CHECK(
      parts >= 1 && size / unit >= parts,
      "a dimension of {}{} cannot be divided over {} ranks: each needs at least one. Use a smaller tensor-parallel size.",
      size / unit,
      unit == 1 ? " elements" : " units",
      parts);
}

int64_t DimSplit::begin(int part) const {
  const int64_t units = size_ / unit_;
  return unit_ *
         (part * (units / parts_) + std::min<int64_t>(part, units % parts_));
}

std::string divisors_of(int64_t number) {
  std::string text;
  for (int64_t n = 1; n <= number; ++n) {
    if (number % n == 0) {
      text += (n == 1 ? "" : ", ") + std::to_string(n);
    }
  }
  return text;
}

} // namespace tessera::sharding
