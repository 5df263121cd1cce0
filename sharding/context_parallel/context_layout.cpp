// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/context_parallel/context_layout.h"

#include "tessera/runtime/core/error.h"

#include <ATen/ops/cat.h>

#include <map>

namespace tessera {

std::vector<ContextSegment> context_segments(
    ContextLayout layout,
    int64_t length,
    int rank,
    int ranks) {
  const bool zigzag = layout == ContextLayout::kZigzag;
  const int64_t parts = zigzag ? 2 * ranks : ranks;
  TESSERA_CHECK(
      length > 0 && length % parts == 0,
      "a sequence of {} tokens cannot be divided into the {}{}{} ranks; pad it to a multiple of the number of parts.",
      length,
      parts,
      zigzag ? " equal parts of zigzag context parallelism over "
             : " equal parts of context parallelism over ",
      ranks);
  const int64_t part = length / parts;
  if (!zigzag) {
    return {{rank * part, 0, part}};
  }
  return {{rank * part, 0, part}, {(parts - 1 - rank) * part, part, part}};
}

at::Tensor take_context_part(
    const at::Tensor& full,
    int64_t dim,
    ContextLayout layout,
    int rank,
    int ranks) {
  std::vector<at::Tensor> parts;
  for (const ContextSegment& segment :
       context_segments(layout, full.size(dim), rank, ranks)) {
    parts.push_back(full.narrow(dim, segment.first, segment.length));
  }
  return at::cat(parts, dim);
}

at::Tensor in_sequence_order(
    const at::Tensor& by_rank,
    int64_t dim,
    ContextLayout layout,
    int ranks) {
  if (layout == ContextLayout::kContiguous) {
    return by_rank;
  }
  const int64_t length = by_rank.size(dim);
  std::map<int64_t, at::Tensor> by_position;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const ContextSegment& segment :
         context_segments(layout, length, rank, ranks)) {
      by_position[segment.first] = by_rank.narrow(
          dim, rank * (length / ranks) + segment.offset, segment.length);
    }
  }
  std::vector<at::Tensor> parts;
  for (const auto& [position, part] : by_position) {
    parts.push_back(part);
  }
  return at::cat(parts, dim);
}

at::Tensor in_rank_order(
    const at::Tensor& sequence,
    int64_t dim,
    ContextLayout layout,
    int ranks) {
  if (layout == ContextLayout::kContiguous) {
    return sequence;
  }
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    parts.push_back(take_context_part(sequence, dim, layout, rank, ranks));
  }
  return at::cat(parts, dim);
}

} // namespace tessera
