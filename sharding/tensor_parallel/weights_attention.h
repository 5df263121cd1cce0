// SPDX-License-Identifier: Apache-2.0
#pragma once
// `weights_attention()` computes attention with its weights materialized.

#include <ATen/core/Tensor.h>

#include <functional>

namespace tessera::sharding {

struct WeightsAttentionOptions {
  /// Undefined, or broadcast to [B, h, Q, K]: bool, true where a query attends,
  /// or a value that is added to the scaled scores.
  at::Tensor mask;
  bool causal = false; ///< a query sees keys up to its position; without a mask
  double scale = 1; ///< factor of the product of query and key
  /// Applied to the weights [B, h, Q, K] before they are used; may be empty.
  /// For dropout with a known mask: fused kernels draw their own.
  std::function<at::Tensor(const at::Tensor&)> drop;
};

/// Computes softmax(scale Q K^T + mask) V by separate operators, the softmax in
/// float32 or better.
/// @param query [B, h, Q, n].
/// @param key [B, kv heads, K, n]; each head is shared by h / kv heads
///   neighbors.
/// @param value [B, kv heads, K, m].
/// @return [B, h, Q, m].
at::Tensor weights_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const WeightsAttentionOptions& options);

} // namespace tessera::sharding
