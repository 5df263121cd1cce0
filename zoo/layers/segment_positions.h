// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SegmentPositions` is the relative attention bias of sequences made of
// segments, as in CPM-Ant (https://github.com/OpenBMB/CPM-Live).

#include "tessera/zoo/layers/positions.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace tessera::zoo {

struct SegmentPositionsOptions {
  int64_t heads = 0;
  int64_t segments = 1; ///< number of segment types
  RelativeBuckets buckets; ///< for tokens of the same segment
  double deviation = 0.02; ///< standard deviation of initial weights
};

/// Keys in the query's segment are looked up by their distance, others by the
/// two segments alone. Parameter `weight` [buckets + segments^2, heads], whole
/// on every rank.
class SegmentPositionsImpl : public torch::nn::Module {
 public:
  /// @throws tessera::Error unless `heads` and `segments` are positive.
  explicit SegmentPositionsImpl(const SegmentPositionsOptions& options);

  /// @param query_segments, key_segments int64 [B, Q] and [B, K], less than
  ///     `segments`.
  /// @param first the position of the first query among the keys.
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
