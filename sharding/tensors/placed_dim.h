// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checked access to the dimension that a mesh axis divides.

#include "tessera/sharding/tensors/dim_split.h"
#include "tessera/sharding/tensors/placement.h"

#include <cstddef>
#include <cstdint>

namespace tessera::sharding {

/// Returns the index of the dimension, out of `dims`, that `shard` divides.
/// @throws tessera::Error naming the axis when the dimension does not exist.
size_t dim_of(const Shard& shard, size_t dims, size_t axis);

/// Returns how `group` divides a dimension of `length` elements.
/// @throws tessera::Error naming the axis when it cannot be divided.
DimSplit split_of(
    const Shard& shard,
    int64_t length,
    size_t axis,
    const Communicator& group);

} // namespace tessera::sharding
