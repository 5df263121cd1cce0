// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/divided_view.h"

#include <c10/util/accumulate.h>

namespace tessera::sharding {

std::optional<DividedDim> divided_view(
    at::IntArrayRef from,
    const DividedDim& divided,
    at::IntArrayRef to) {
  const auto dim = static_cast<size_t>(divided.dim);
  const int64_t before = c10::multiply_integers(from.slice(0, dim));
  const int64_t after = c10::multiply_integers(from.slice(dim + 1));
  int64_t outside = 1;
  for (size_t i = 0; i < to.size(); ++i) {
    if (outside == before && to[i] != 1) {
      const int64_t inside = c10::multiply_integers(to.slice(i + 1));
      const DimSplit& split = divided.split;
      // Elements of the memory of the whole that stay together.
      const int64_t together =
          (split.is_even() ? split.longest() : split.unit()) * after;
      if (inside == 0 || together % inside != 0 ||
          to[i] * inside != from[dim] * after) {
        return std::nullopt;
      }
      return DividedDim{
          static_cast<int64_t>(i),
          DimSplit(to[i], split.parts(), together / inside)};
    }
    outside *= to[i];
  }
  return std::nullopt;
}

} // namespace tessera::sharding
