// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention that has its weights in memory.

#include <ATen/core/Tensor.h>

#include <functional>

namespace tessera {

struct WeightsAttentionOptions {
  /// Undefined, or broadcast to [B, h, Q, K]: bool, true where a query attends,
  /// or a number that is added to the scaled product.
  at::Tensor mask;
  bool causal = false; ///< a query sees keys up to its place; without a mask
  double scale = 1; ///< of the product of query and key
  /// What is done to the weights [B, h, Q, K] before they are used; may be
  /// empty. Dropout with a mask that one knows: fused kernels draw their own.
  std::function<at::Tensor(const at::Tensor&)> drop;
};

/// softmax(scale Q K^T + mask) V by one operator after the other, the softmax
/// in float32 or better.
/// @param query [B, h, Q, n].
/// @param key [B, kv heads, K, n]; each is shared by h / kv heads neighbours.
/// @param value [B, kv heads, K, m].
/// @return [B, h, Q, m].
at::Tensor weights_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const WeightsAttentionOptions& options);

} // namespace tessera
