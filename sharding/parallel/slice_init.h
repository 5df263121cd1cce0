// SPDX-License-Identifier: Apache-2.0
#pragma once
// Initial values of a part of a parameter.

#include "tessera/sharding/init_method.h"

#include <cstdint>
#include <vector>

namespace tessera {

/// Where a part lies in a whole: elements [begin, begin + length) of dimension
/// `dim` of a parameter of `sizes`.
struct ParameterSlice {
  std::vector<int64_t> sizes;
  int64_t dim = 0;
  int64_t begin = 0;
  int64_t length = 0;
};

/// An init method for the part, as a parameter of its own, that gives it the
/// numbers which `whole` gives the whole. It asks `whole` for runs of elements
/// that follow each other; nothing else of the whole is made.
InitMethod slice_init(InitMethod whole, ParameterSlice slice);

} // namespace tessera
