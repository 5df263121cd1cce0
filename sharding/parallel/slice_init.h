// SPDX-License-Identifier: Apache-2.0
#pragma once
// `slice_init()` derives the init method of a slice of a parameter from that of
// the whole.

#include "tessera/sharding/init_method.h"

#include <cstdint>
#include <vector>

namespace tessera::sharding {

/// Elements [begin, begin + length) of dimension `dim` of a parameter of
/// `sizes`.
struct ParameterSlice {
  std::vector<int64_t> sizes;
  int64_t dim = 0;
  int64_t begin = 0;
  int64_t length = 0;
};

/// Returns an init method for the slice, as a parameter of its own, that gives
/// it the same values as `whole` gives the whole parameter. It calls `whole`
/// for contiguous runs of elements; the rest of the whole is never computed.
InitMethod slice_init(InitMethod whole, ParameterSlice slice);

} // namespace tessera::sharding
