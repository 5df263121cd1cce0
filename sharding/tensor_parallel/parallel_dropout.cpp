// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/parallel_dropout.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/sharding/tensor_parallel/tensor_random.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>

#include <vector>

namespace tessera::sharding {

namespace {

/// Drops with elements [begin, begin + part.size(dim)) of the mask of the
/// whole, whose dimension `dim` has `length` elements.
at::Tensor drop_of_full(
    const at::Tensor& part,
    double probability,
    int64_t dim,
    int64_t begin,
    int64_t length) {
  if (probability == 0 || probability == 1) {
    return at::dropout(part, probability, true); // draws no random numbers
  }
  std::vector<int64_t> sizes = part.sizes().vec();
  const int64_t local = part.size(dim);
  sizes.at(static_cast<size_t>(dim < 0 ? dim + part.dim() : dim)) = length;
  // The CPU generator yields int32 and converts them to anything else.
  const at::Tensor mask =
      at::empty(
          sizes, part.options().dtype(part.is_cpu() ? at::kInt : at::kBool))
          .bernoulli_(1 - probability)
          .narrow(dim, begin, local);
  return part * mask.to(part.scalar_type()).div_(1 - probability);
}

} // namespace

bool draws_full_masks(const TensorParallel& tp, at::Device device) {
  return tp.masks == DropoutMasks::kOfWhole ||
         (tp.masks == DropoutMasks::kByDevice &&
          runtime::computes_on_cpu(device));
}

at::Tensor dropout_part(
    const at::Tensor& part,
    double probability,
    int64_t dim,
    const DimSplit& split,
    const TensorParallel& tp) {
  const int rank = tp.group->rank();
  TESSERA_CHECK(
      part.size(dim) == split.length(rank),
      "dropout_part: dimension {} of a tensor of sizes {} should have the {} elements that rank {} of '{}' has of {}. Pass the split by which the preceding layer was divided.",
      dim,
      part.sizes(),
      split.length(rank),
      rank,
      tp.group->name(),
      split.size());
  if (draws_full_masks(tp, part.device())) {
    return drop_of_full(
        part, probability, dim, split.begin(rank), split.size());
  }
  const TensorRandomScope local(*tp.group, part.device());
  return at::dropout(part, probability, true);
}

} // namespace tessera::sharding
