// SPDX-License-Identifier: Apache-2.0
#pragma once
// The dimension that an axis divides, checked.

#include "tessera/sharding/parallel/dim_split.h"
#include "tessera/sharding/parallel/placement.h"

#include <cstddef>
#include <cstdint>

namespace tessera {

/// Which of `dims` dimensions it is.
/// @throws tessera::Error naming the axis when there is no such one.
size_t dim_of(const Shard& shard, size_t dims, size_t axis);

/// How `group` divides a dimension of `length` elements.
/// @throws tessera::Error naming the axis when it cannot.
DimSplit split_of(
    const Shard& shard,
    int64_t length,
    size_t axis,
    const Communicator& group);

} // namespace tessera
