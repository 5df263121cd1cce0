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
// several. Sums are in float32. What dropout drops is a hash of a number drawn
// once for the call, of batch row, head, query and key: backward computes it
// again, and ranks that have some of the heads drop what one rank does.

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

/// Dropout of attention's weights.
struct AttentionDropout {
  double probability = 0;
  /// The number of the first query head among all `heads` of the layer, of
  /// which a rank of a group may have some; the group draws the same numbers.
  int64_t first_head = 0;
  int64_t heads = 0; ///< 0: those of the query
};

/// Whether pattern_attention() takes these: float32, bfloat16 or float16 on the
/// CPU, of a processor that it has vectors for.
bool takes_pattern_attention(const at::Tensor& query);
bool takes_pattern_attention(at::Device device, at::ScalarType dtype);

/// Bytes that its backward needs while it computes, beside its results.
/// @param units heads of keys of all batch rows; each thread has one at a time.
int64_t pattern_attention_workspace(
    int64_t units,
    int64_t keys,
    int64_t features,
    int64_t value_features);

/// softmax(scale Q K^T) V over the pairs that see each other; 0 for a query
/// that sees no key. Differentiable, twice by LibTorch's operators.
/// Deterministic but for dropout, which takes a number of the CPU's default
/// generator.
/// @param query [B, h, Q, n], see takes_pattern_attention().
/// @param key [B, kv heads, K, n] of its dtype; each head is shared by h / kv
///   heads neighbors.
/// @param value [B, kv heads, K, m], likewise.
/// @return [B, h, Q, m]; by token in memory.
/// @throws tessera::Error on other shapes or dtypes, and on a probability that
///     is none.
at::Tensor pattern_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const AttentionPattern& pattern,
    double scale,
    const AttentionDropout& dropout = {});

} // namespace tessera::runtime
