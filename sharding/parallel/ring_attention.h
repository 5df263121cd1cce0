// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention over sequences that are divided over ranks.

#include "tessera/runtime/comm/ring_channels.h"
#include "tessera/sharding/parallel/context_layout.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace tessera {

struct RingAttentionOptions {
  bool causal = false;
  std::optional<double> scale; ///< by default 1 / sqrt(features of a head)
  ContextLayout layout = ContextLayout::kContiguous;
};

/// Softmax attention of this rank's queries to the keys and values of all ranks
/// (arXiv:2310.01889), exact: blocks of keys and values go round the ring while
/// the block before them is worked on, and results are joined by the logarithm
/// of their softmax's denominator. Backward goes round once more, with the
/// gradients of keys and values travelling beside them until they are home.
///
/// With n ranks and s tokens a rank keeps [s/n] activations and scores of
/// [s/n, s/n] at a time, and sends 2 (n-1) / n of all keys and values forward,
/// and backward those and their gradients. Blocks that a causal mask hides are
/// skipped.
///
/// @param query [batch, heads, own tokens, features], floating point.
/// @param key, value [batch, kv heads, own tokens, features]; kv heads divide
///     heads, neighbouring heads sharing one.
/// @param ring of the context-parallel ranks, in the order of their tokens;
///     outlives the graph.
/// @return as query. Sums are in float32 (float64 for such inputs).
/// Collective; blocks; in backward too, so an argument's requires_grad must not
/// differ between ranks. Once differentiable.
/// @throws tessera::Error when shapes do not fit each other.
at::Tensor ring_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    RingChannels& ring,
    const RingAttentionOptions& options = {});

} // namespace tessera
