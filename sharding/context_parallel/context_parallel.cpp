// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/context_parallel/context_parallel.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/collectives/group_operations.h"
#include "tessera/sharding/collectives/linear_function.h"

namespace tessera {

void check(const ContextParallel& how) {
  TESSERA_CHECK(
      how.group != nullptr,
      "ContextParallel has no group; omit it if sequences are not divided.");
  TESSERA_CHECK(
      how.kind != ContextKind::kRing ||
          (how.ring != nullptr && how.ring->size() == how.group->size() &&
           how.ring->index() == how.group->rank()),
      "ContextParallel: ring attention needs the channels of the {} ranks of its group, in their order; create RingChannels from the mesh's ranks of ParallelGroup::kContext.",
      how.group->size());
}

at::Tensor own_context_part(
    const at::Tensor& whole,
    int64_t dim,
    const ContextParallel& how) {
  const int ranks = how.group->size();
  return ranks == 1 ? whole
                    : take_context_part(
                          whole, dim, how.layout, how.group->rank(), ranks);
}

at::Tensor whole_context(
    const at::Tensor& own,
    int64_t dim,
    const ContextParallel& how) {
  const int ranks = how.group->size();
  if (ranks == 1) {
    return own;
  }
  const at::Tensor parts = sharding::apply_linear(
      own,
      [](const at::Tensor& tensor) { return tensor; },
      [ranks](const at::Tensor& gradient) { return gradient * ranks; });
  return in_sequence_order(
      gather_parts(
          parts,
          dim,
          sharding::DimSplit(own.size(dim) * ranks, ranks),
          *how.group),
      dim,
      how.layout,
      ranks);
}

at::Tensor context_mean(
    const at::Tensor& own_sum,
    const at::Tensor& count,
    const ContextParallel& how) {
  return sharding::mean_over_group(
      own_sum * how.group->size() / count, *how.group);
}

} // namespace tessera
