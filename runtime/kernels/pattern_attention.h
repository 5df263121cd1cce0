// SPDX-License-Identifier: Apache-2.0
#pragma once
// `pattern_attention()` is attention between the queries and keys that see each
// other by an AttentionPattern, on the CPU.
//
// [Note: pattern attention] Queries are taken in tiles of neighbors, which end
// where a document ends, and keys in blocks; blocks that no query of a tile
// sees cost nothing. A softmax is computed block by block (arXiv:2205.14135),
// and backward computes the weights again from the logarithm of each query's
// sum. Query heads that share a key head take it as it is. Tiles begin anew
// with each document: its results have the same bits alone and in a row of
// several. Sums are in float32.

#include "tessera/runtime/kernels/attention_pattern.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>
#include <vector>

namespace tessera::runtime {

struct AttentionRow;
struct AttentionTile;
struct AttentionComponent;

/// What is computed for the queries of one batch row, in order.
struct AttentionSchedule {
  std::vector<AttentionTile> tiles; ///< of all queries
  /// Cover all keys; some may have no tiles.
  std::vector<AttentionComponent> components;

  static AttentionSchedule of(
      const AttentionRow& row,
      int64_t queries,
      int64_t keys);
};

/// Whether pattern_attention() takes these: float32, bfloat16 or float16 on the
/// CPU, of a processor that it has vectors for.
bool takes_pattern_attention(const at::Tensor& query);

/// softmax(scale Q K^T) V over the pairs that see each other; 0 for a query
/// that sees no key. Differentiable, twice by LibTorch's operators.
/// Deterministic.
/// @param query [B, h, Q, n], see takes_pattern_attention().
/// @param key [B, kv heads, K, n] of its dtype; each head is shared by h / kv
///   heads neighbors.
/// @param value [B, kv heads, K, m], likewise.
/// @return [B, h, Q, m]; by token in memory.
/// @throws tessera::Error on other shapes or dtypes.
at::Tensor pattern_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const AttentionPattern& pattern,
    double scale);

} // namespace tessera::runtime
