// SPDX-License-Identifier: Apache-2.0
#pragma once
// Positions of texts that are made of segments, as CPM-Ant has them
// (https://github.com/OpenBMB/CPM-Live).

#include "tessera/zoo/layers/positions.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace tessera::zoo {

struct SegmentPositionsOptions {
  int64_t heads = 0;
  int64_t segments = 1; ///< kinds of them
  RelativeBuckets buckets; ///< of tokens within one segment
  double deviation = 0.02; ///< of fresh weights
};

/// A bias of attention. Keys of the query's segment are looked up by their
/// distance, others by the two segments alone. Parameter `weight` [buckets +
/// segments^2, heads], whole on every rank.
class SegmentPositionsImpl : public torch::nn::Module {
 public:
  /// @throws tessera::Error unless there are heads and segments.
  explicit SegmentPositionsImpl(const SegmentPositionsOptions& options);

  /// @param query_segments, key_segments int64 [B, Q] and [B, K], below
  ///     `segments`.
  /// @param first place of the first query among the keys.
  /// @return [B, heads, Q, K], see AttentionInput::bias.
  at::Tensor forward(
      const at::Tensor& query_segments,
      const at::Tensor& key_segments,
      int64_t first = 0);

 private:
  SegmentPositionsOptions options_;
  at::Tensor weight_;
};
TORCH_MODULE(SegmentPositions);

} // namespace tessera::zoo
