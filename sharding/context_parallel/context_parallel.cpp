// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/context_parallel/context_parallel.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/collectives/group_operations.h"
#include "tessera/sharding/collectives/linear_function.h"

namespace tessera {

void check(const ContextParallel& cp) {
  TESSERA_CHECK(
      cp.group != nullptr,
      "ContextParallel has no group; omit it if sequences are not divided.");
  TESSERA_CHECK(
      cp.kind != ContextKind::kRing ||
          (cp.ring != nullptr && cp.ring->size() == cp.group->size() &&
           cp.ring->index() == cp.group->rank()),
      "ContextParallel: ring attention needs the channels of the {} ranks of its group, in their order; create RingChannels from the mesh's ranks of ParallelGroup::kContext.",
      cp.group->size());
}

at::Tensor local_context_part(
    const at::Tensor& full,
    int64_t dim,
    const ContextParallel& cp) {
  const int ranks = cp.group->size();
  return ranks == 1
             ? full
             : take_context_part(full, dim, cp.layout, cp.group->rank(), ranks);
}

at::Tensor full_context(
    const at::Tensor& local,
    int64_t dim,
    const ContextParallel& cp) {
  const int ranks = cp.group->size();
  if (ranks == 1) {
    return local;
  }
  const at::Tensor parts = sharding::apply_linear(
      local,
      [](const at::Tensor& tensor) { return tensor; },
      [ranks](const at::Tensor& gradient) { return gradient * ranks; });
  return in_sequence_order(
      gather_parts(
          parts,
          dim,
          sharding::DimSplit(local.size(dim) * ranks, ranks),
          *cp.group),
      dim,
      cp.layout,
      ranks);
}

at::Tensor context_mean(
    const at::Tensor& local_sum,
    const at::Tensor& count,
    const ContextParallel& cp) {
  return sharding::mean_over_group(
      local_sum * cp.group->size() / count, *cp.group);
}

} // namespace tessera
