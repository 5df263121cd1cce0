// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensors/placement.h"

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensors/placed_dim.h"

namespace tessera {

std::string to_string(const Placement& placement) {
  if (const auto* shard = std::get_if<Shard>(&placement)) {
    return "Shard{" + std::to_string(shard->dim) +
           (shard->unit == 1 ? "" : ", " + std::to_string(shard->unit)) + "}";
  }
  return std::holds_alternative<Replicate>(placement) ? "Replicate"
         : std::holds_alternative<Partial>(placement) ? "Partial"
                                                      : "Shared";
}

size_t sharding::dim_of(const Shard& shard, size_t dims, size_t axis) {
  const auto count = static_cast<int64_t>(dims);
  TESSERA_CHECK(
      shard.dim >= -count && shard.dim < count,
      "axis {} is placed as {}, but the tensor has {} dimensions; use one of them.",
      axis,
      to_string(shard),
      dims);
  return static_cast<size_t>(shard.dim < 0 ? shard.dim + count : shard.dim);
}

sharding::DimSplit sharding::split_of(
    const Shard& shard,
    int64_t length,
    size_t axis,
    const Communicator& group) {
  TESSERA_CHECK(
      shard.unit >= 1 && length % shard.unit == 0 &&
          length / shard.unit >= group.size(),
      "axis {} ('{}') is placed as {}, and its {} ranks cannot divide the {} elements of that dimension{}. Each needs at least one: use Replicate, or a smaller group.",
      axis,
      group.name(),
      to_string(shard),
      group.size(),
      length,
      shard.unit == 1 ? "" : " in whole units");
  return {length, group.size(), shard.unit};
}

std::vector<int64_t> placed_sizes(
    at::IntArrayRef sizes,
    const Placements& placements,
    at::ArrayRef<Communicator*> groups) {
  TESSERA_CHECK(
      placements.size() == groups.size(),
      "the number of placements is {}, that of axes {}; give one for each.",
      placements.size(),
      groups.size());
  std::vector<int64_t> local = sizes.vec();
  for (size_t axis = 0; axis < groups.size(); ++axis) {
    if (const auto* shard = std::get_if<Shard>(&placements[axis])) {
      int64_t& length = local[sharding::dim_of(*shard, local.size(), axis)];
      length = sharding::split_of(*shard, length, axis, *groups[axis])
                   .length(groups[axis]->rank());
    }
  }
  return local;
}

} // namespace tessera
