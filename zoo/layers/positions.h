// SPDX-License-Identifier: Apache-2.0
#pragma once
// Positions, and encodings of them other than rotary: sinusoidal tables, T5's
// relative buckets, CPM-3's buckets of segments.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace tessera::zoo {

/// Positions of tokens, not counting padding: int64 [B, S], -1 where
/// attention_mask [B, S] is 0.
at::Tensor positions_without_padding(const at::Tensor& attention_mask);

enum class SinusoidLayout {
  kSinesThenCosines, ///< [sin f0, sin f1, ..., cos f0, cos f1, ...]
  kPairs, ///< [sin f0, cos f0, sin f1, cos f1, ...] (arXiv:1706.03762)
};

/// float32 [positions, features]: sines and cosines of position * base^(-2i /
/// features), computed in float64. `features` must be even.
at::Tensor sinusoid_table(
    int64_t positions,
    int64_t features,
    SinusoidLayout layout,
    double base = 10000);

struct RelativeBuckets {
  int64_t buckets = 32;
  int64_t max_distance = 128;
  /// Keys after and before the query get half of the buckets each.
  bool bidirectional = true;
};

/// The bucket of key - query (arXiv:1910.10683): exact for small distances,
/// logarithmic up to max_distance. int64 [queries, keys].
/// @param first the position of the first query among the keys.
at::Tensor relative_buckets(
    int64_t queries,
    int64_t keys,
    const RelativeBuckets& options,
    const at::Device& device,
    int64_t first = 0);

/// The same for any positions: key - query, int64 of any shape.
at::Tensor relative_buckets(
    const at::Tensor& relative,
    const RelativeBuckets& options);

/// The bucket of each pair of segments, as in ModelCenter's CPM-3: query's *
/// segments + key's. int64 [B, queries, keys].
/// @param of_queries, of_keys int64 [B, queries], [B, keys], below `segments`.
at::Tensor segment_buckets(
    const at::Tensor& of_queries,
    const at::Tensor& of_keys,
    int64_t segments);

} // namespace tessera::zoo
