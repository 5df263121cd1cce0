// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of attention that can be swapped: what happens between the
// projections.

#include <ATen/core/Tensor.h>

#include <functional>

namespace tessera::zoo {

/// Of one call; B rows, h heads, Q queries, K keys.
struct AttentionCall {
  at::Tensor query; ///< [B, h, Q, n]
  at::Tensor key; ///< [B, kv heads, K, n]; h is a multiple of kv heads
  at::Tensor value; ///< [B, kv heads, K, m]
  /// Undefined, or broadcast to [B, h, Q, K]: bool, true where a query attends,
  /// or a number that is added to the scaled product.
  at::Tensor mask;
  bool causal = false; ///< a query sees keys up to its place; without a mask
  double scale = 1; ///< of the product of query and key
  double dropout = 0; ///< of the weights
  /// Where it is set, dropout of weights [B, h, Q, K] that has to be done so:
  /// the mask is a part of that of all heads.
  std::function<at::Tensor(const at::Tensor& weights)> drop_weights;
};

/// -> [B, h, Q, m].
using AttentionFunction = std::function<at::Tensor(const AttentionCall&)>;

/// LibTorch's fused kernels; with drop_weights as plain_attention().
at::Tensor fused_attention(const AttentionCall& call);

/// Matrix products and a softmax in float32 or better, one after the other:
/// what the others are held against.
at::Tensor plain_attention(const AttentionCall& call);

} // namespace tessera::zoo
