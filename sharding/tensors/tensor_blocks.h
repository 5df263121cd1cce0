// SPDX-License-Identifier: Apache-2.0
#pragma once
// `intersect()` computes which elements two parts of a tensor have in common
// and where they lie in each. Pure arithmetic; all numbers count elements.

#include "tessera/sharding/tensors/tensor_spec.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tessera::sharding {

/// Where the elements of a box lie in a flat memory: element (i, j, ...) at
/// offset + i * strides[0] + j * strides[1] + ...
struct BlockLayout {
  int64_t offset = 0;
  std::vector<int64_t> strides;
};

/// A box of a tensor - indices [begin, begin + size) of each dimension - and
/// where it lies in the memory of a part, or of a file.
struct TensorBlock {
  std::vector<int64_t> begin;
  std::vector<int64_t> sizes;
  BlockLayout layout;
};

/// Elements that two parts have in common, as a box with a place in each.
/// Dimensions that follow each other without a gap in both are joined.
struct CommonBlock {
  std::vector<int64_t> sizes;
  BlockLayout here;
  BlockLayout there;

  int64_t numel() const;
};

/// The strides of a contiguous tensor.
std::vector<int64_t> row_major_strides(std::span<const int64_t> sizes);

/// The number of elements with indices in `ranges`, of a tensor of `sizes`.
int64_t numel_of(
    std::span<const int64_t> sizes,
    std::span<const DimRange> ranges);

/// A part as boxes, at most 2 * dimensions - 1 of them; places count from the
/// first element of its stretch. The part ends where the tensor does.
std::vector<TensorBlock> blocks_of(
    std::span<const int64_t> sizes,
    const TensorSlice& part);

/// The common elements of blocks of one tensor; the blocks of each do not
/// overlap.
std::vector<CommonBlock> intersect(
    std::span<const TensorBlock> here,
    std::span<const TensorBlock> there);

/// The common elements of two parts of a tensor of `sizes`; places count from
/// the first elements of their stretches.
std::vector<CommonBlock> intersect(
    std::span<const int64_t> sizes,
    const TensorSlice& here,
    const TensorSlice& there);

/// Calls `visit(here, there, numel)` for runs of elements that follow each
/// other in both places; for single elements if they do not.
template <typename Visit>
void for_each_segment(const CommonBlock& block, const Visit& visit) {
  size_t dims = block.sizes.size();
  const bool has_segments = dims > 0 && block.here.strides[dims - 1] == 1 &&
                            block.there.strides[dims - 1] == 1;
  const int64_t length = has_segments ? block.sizes[dims - 1] : 1;
  dims -= has_segments ? 1 : 0;
  int64_t segments = 1;
  for (size_t d = 0; d < dims; ++d) {
    segments *= block.sizes[d];
  }
  int64_t here = block.here.offset;
  int64_t there = block.there.offset;
  std::vector<int64_t> index(dims, 0);
  for (int64_t segment = 0; segment < segments; ++segment) {
    visit(here, there, length);
    for (size_t d = dims; d-- > 0;) {
      here += block.here.strides[d];
      there += block.there.strides[d];
      if (++index[d] < block.sizes[d]) {
        break;
      }
      here -= block.sizes[d] * block.here.strides[d];
      there -= block.sizes[d] * block.there.strides[d];
      index[d] = 0;
    }
  }
}

} // namespace tessera::sharding
