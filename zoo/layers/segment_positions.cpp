// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/segment_positions.h"

#include "tessera/runtime/core/error.h"

#include <torch/types.h>

namespace tessera::zoo {

SegmentPositionsImpl::SegmentPositionsImpl(
    const SegmentPositionsOptions& options)
    : options_(options) {
  TESSERA_CHECK(
      options.heads >= 1 && options.segments >= 1,
      "segment positions of {} heads and {} segments; there must be 1 or more of both",
      options.heads,
      options.segments);
  weight_ = register_parameter(
      "weight",
      torch::empty(
          {options.buckets.buckets + options.segments * options.segments,
           options.heads}));
  const torch::NoGradGuard no_grad;
  weight_.normal_(0, options.deviation);
}

at::Tensor SegmentPositionsImpl::forward(
    const at::Tensor& query_segments,
    const at::Tensor& key_segments,
    int64_t first) {
  TESSERA_CHECK(
      query_segments.dim() == 2 && key_segments.dim() == 2 &&
          query_segments.size(0) == key_segments.size(0),
      "segments of queries {} and of keys {}; they must be [batch, tokens] of one batch",
      query_segments.sizes(),
      key_segments.sizes());
  const at::Tensor queries = query_segments.unsqueeze(2);
  const at::Tensor keys = key_segments.unsqueeze(1);
  const at::Tensor within = relative_buckets(
      query_segments.size(1),
      key_segments.size(1),
      options_.buckets,
      query_segments.device(),
      first);
  const at::Tensor across =
      queries * options_.segments + keys + options_.buckets.buckets;
  const at::Tensor rows = torch::where(queries.eq(keys), within, across);
  return at::embedding(weight_, rows).permute({0, 3, 1, 2}).contiguous();
}

} // namespace tessera::zoo
