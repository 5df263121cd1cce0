// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention over divided sequences that is, inside, attention over divided
// heads.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/parallel/context_layout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace tessera {

/// Attention over whole sequences of some heads: query [batch, heads, tokens,
/// features], key and value [batch, kv heads, tokens, features], to the size of
/// the query (with the value's features). kv heads divide heads, neighbouring
/// heads sharing one.
using HeadAttention = std::function<at::Tensor(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value)>;

/// Which of `heads` a context-parallel rank works on between the exchanges of
/// ulysses_attention(): masks and biases that have a number for every head are
/// cut by it.
struct HeadRange {
  int64_t begin = 0;
  int64_t length = 0;
};

/// @throws tessera::Error when the ranks do not divide the heads, naming the
///   numbers of ranks that do.
HeadRange ulysses_heads(int64_t heads, int rank, int ranks);

/// Attention of this rank's queries to the keys and values of all ranks
/// (arXiv:2309.14509), exact for any attention function, mask and dropout: an
/// all-to-all turns the rank's tokens of all heads into all tokens of some
/// heads, in the order of the sequence; another one turns the result back.
///
/// Of n ranks with s/n tokens each, a rank sends (n-1)/n of its query, key,
/// value and result, forward and backward. kv heads that the ranks do not
/// divide are sent to all that need them: repeated until they do, at most once
/// for every head. While it attends it has [batch, heads / n, s, features] of
/// each, as large as what it has of its own tokens.
///
/// @param query [batch, heads, own tokens, features].
/// @param key, value [batch, kv heads, own tokens, features], of the same text
///     or another one.
/// @param group of the context-parallel ranks; outlives the graph.
/// @return as the query. Collective, blocks; so is its backward.
/// @throws tessera::Error on sizes that do not fit each other or the group.
at::Tensor ulysses_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    Communicator& group,
    ContextLayout layout,
    const HeadAttention& attention);

} // namespace tessera
