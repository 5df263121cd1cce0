// SPDX-License-Identifier: Apache-2.0
#pragma once
// `slice_init()` derives the init method of a slice of a parameter from that of
// the whole.

#include "tessera/sharding/lazy/init_method.h"
#include "tessera/sharding/tensors/tensor_spec.h"

#include <cstdint>
#include <vector>

namespace tessera::sharding {

/// Returns an init method for the elements of a parameter of `sizes` whose
/// indices are in `ranges`, as a parameter of its own, that gives them the same
/// values as `full` gives the whole parameter. It calls `full` for contiguous
/// runs of elements; the rest of the whole is never computed.
InitMethod slice_init(
    InitMethod full,
    std::vector<int64_t> sizes,
    std::vector<DimRange> ranges);

} // namespace tessera::sharding
