// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ring_attention()` computes attention over sequences that are sharded over
// ranks.

#include "tessera/runtime/comm/ring_channels.h"
#include "tessera/runtime/kernels/attention_pattern.h"
#include "tessera/sharding/context_parallel/context_layout.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace tessera::sharding {

struct RingAttentionOptions {
  bool causal = false; ///< without a pattern
  std::optional<double> scale; ///< by default 1 / sqrt(features of a head)
  ContextLayout layout = ContextLayout::kContiguous;
  /// The keys that each query sees, of whole sequences, in their order; may be
  /// undefined. Every rank has the same.
  runtime::AttentionPattern pattern;
};

/// Softmax attention of this rank's queries to the keys and values of all ranks
/// (arXiv:2310.01889). It is exact: blocks of keys and values are passed around
/// the ring while the previous block is processed, and partial results are
/// combined by the logarithm of their softmax denominator. Backward passes the
/// blocks around once more, together with the gradients of keys and values,
/// which end up on their own rank.
///
/// With n ranks and s tokens, a rank keeps [s/n] activations and scores of
/// [s/n, s/n], and a mask of such a block, at a time. In forward it sends 2
/// (n-1) / n of all keys and values, in backward those and their gradients.
/// Blocks that a causal mask hides are skipped, on the CPU also those that a
/// pattern hides. A query that sees no key has the result 0.
///
/// @param query [batch, heads, own tokens, features], floating point.
/// @param key, value [batch, kv heads, own tokens, features]; heads must be a
///   multiple of kv heads; neighboring heads share one.
/// @param ring connects the context-parallel ranks, in the order of their
///   tokens; must outlive the graph.
/// @return shape of query. Sums are in float32 (float64 for float64 inputs).
///   Collective; blocks; also in backward, so whether an argument requires a
///   gradient must not differ between ranks. Differentiable once.
/// @throws tessera::Error when shapes do not match.
at::Tensor ring_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    runtime::RingChannels& ring,
    const RingAttentionOptions& options = {});

} // namespace tessera::sharding
