// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AttentionFunction` computes attention from query, key and value; `Attention`
// takes it as an option.

#include "tessera/runtime/kernels/attention_pattern.h"

#include <ATen/core/Tensor.h>

#include <functional>

namespace tessera::zoo {

using runtime::AttentionPattern;
using runtime::with_safe_rows;

/// The arguments of one call; B sequences, h heads, Q queries, K keys.
struct AttentionCall {
  at::Tensor query; ///< [B, h, Q, n]
  at::Tensor key; ///< [B, kv heads, K, n]; h is a multiple of kv heads
  at::Tensor value; ///< [B, kv heads, K, m]
  AttentionPattern pattern; ///< the keys that each query sees; not with a mask
  /// What a pattern does not describe: undefined, or broadcast to [B, h, Q, K],
  /// bool, true where a query attends to a key, or a number that is added to
  /// the scaled product.
  at::Tensor mask;
  /// a query attends to keys up to its position; with neither of these
  bool causal = false;
  double scale = 1; ///< factor on the product of query and key
  double dropout = 0; ///< of the attention weights
  /// If set, replaces the dropout of weights [B, h, Q, K]: the mask must then
  /// be a part of the mask of all heads.
  std::function<at::Tensor(const at::Tensor& weights)> drop_weights;
};

template <typename Visit>
void visit_tensors_of(AttentionCall& call, Visit&& visit) {
  visit(call.query);
  visit(call.key);
  visit(call.value);
  visit_tensors_of(call.pattern, visit);
  visit(call.mask);
}

/// -> [B, h, Q, m].
using AttentionFunction = std::function<at::Tensor(const AttentionCall&)>;

/// All queries see the keys that are not padding.
/// @param attention_mask [B, K], 0 at padding; undefined: no pattern.
AttentionPattern padding_pattern(
    const at::Tensor& attention_mask,
    int64_t queries);

/// LibTorch's fused kernels, or pattern_attention(), whose cost follows the
/// pairs that see each other; as plain_attention() if drop_weights is set.
at::Tensor fused_attention(const AttentionCall& call);

/// Whether fused_attention() keeps no weights of so many queries, with dropout
/// or without; with a mask it may.
bool keeps_no_weights(at::Device device, at::ScalarType dtype, int64_t queries);

/// Whether the function computes what call.pattern hides neither in time nor in
/// memory: fused_attention() on the CPU.
bool skips_hidden_pairs(
    const AttentionFunction& function,
    const AttentionCall& call);

/// Matrix products and a softmax in float32 or better: the reference for the
/// other functions.
at::Tensor plain_attention(const AttentionCall& call);

} // namespace tessera::zoo
