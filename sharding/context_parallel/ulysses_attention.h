// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ulysses_attention()` computes attention over sharded sequences by exchanging
// them for partitioned heads.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/context_parallel/context_layout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace tessera::sharding {

/// Attention over whole sequences of some heads. Takes query [batch, heads,
/// tokens, features], key and value [batch, kv heads, tokens, features];
/// returns the shape of the query (with the value's features). heads is a
/// multiple of kv heads; neighboring heads share one.
using HeadAttention = std::function<at::Tensor(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value)>;

/// The range of `heads` on which a context-parallel rank works between the
/// exchanges of ulysses_attention(), by which to slice masks and biases that
/// differ between heads.
struct HeadRange {
  int64_t begin = 0;
  int64_t length = 0;
};

/// @throws tessera::Error when heads is not a multiple of ranks, naming the
///   numbers of ranks that are possible.
HeadRange ulysses_heads(int64_t heads, int rank, int ranks);

/// Attention of this rank's queries to the keys and values of all ranks
/// (arXiv:2309.14509), exact for any attention function, mask and dropout: an
/// all-to-all turns the rank's tokens of all heads into all tokens, in sequence
/// order, of some heads; another one reverses this for the result.
///
/// With n ranks and s/n tokens on each, a rank sends (n-1)/n of its query, key,
/// value and result, in forward and backward. If the number of kv heads is not
/// a multiple of n, they are repeated until it is, at most once for every head.
/// During attention a rank holds [batch, heads / n, s, features] of each
/// tensor, as much as it holds of its own tokens.
///
/// @param query [batch, heads, own tokens, features].
/// @param key, value [batch, kv heads, own tokens, features], of the same
///   sequences (self-attention) or others (cross-attention).
/// @param group the context-parallel ranks; must outlive the graph.
/// @return shape of query. Collective; blocks; so does its backward.
/// @throws tessera::Error when sizes do not match each other or the group.
at::Tensor ulysses_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    Communicator& group,
    ContextLayout layout,
    const HeadAttention& attention);

} // namespace tessera::sharding
