// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/context_parallel/ulysses_attention.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/collectives/exchange_operations.h"
#include "tessera/sharding/tensors/dim_split.h"

#include <numeric>
#include <string>

namespace tessera::sharding {

namespace {

constexpr int64_t kHeads = 1; // dimension
constexpr int64_t kTokens = 2;

/// Exchanges own tokens of all heads for all tokens of own heads.
at::Tensor local_heads(
    const at::Tensor& x,
    Communicator& group,
    ContextLayout layout) {
  const int ranks = group.size();
  return in_sequence_order(
      all_to_all_parts(
          x,
          kTokens,
          DimSplit(x.size(kTokens) * ranks, ranks),
          kHeads,
          DimSplit(x.size(kHeads), ranks),
          group),
      kTokens,
      layout,
      ranks);
}

/// The inverse of local_heads().
at::Tensor local_tokens(
    const at::Tensor& x,
    Communicator& group,
    ContextLayout layout) {
  const int ranks = group.size();
  return all_to_all_parts(
      in_rank_order(x, kTokens, layout, ranks),
      kHeads,
      DimSplit(x.size(kHeads) * ranks, ranks),
      kTokens,
      DimSplit(x.size(kTokens), ranks),
      group);
}

} // namespace

HeadRange ulysses_heads(int64_t heads, int rank, int ranks) {
  TESSERA_CHECK(
      heads % ranks == 0,
      "Ulysses attention: {} heads are not divisible by {} context-parallel ranks; use a context size of {}, or ring attention.",
      heads,
      ranks,
      divisors_of(heads));
  return {rank * (heads / ranks), heads / ranks};
}

at::Tensor ulysses_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    Communicator& group,
    ContextLayout layout,
    const HeadAttention& attention) {
  TESSERA_CHECK(
      query.dim() == 4 && key.dim() == 4 && value.dim() == 4 &&
          key.size(0) == query.size(0) && key.size(1) > 0 &&
          value.sizes().slice(0, 3) == key.sizes().slice(0, 3) &&
          query.size(1) % key.size(1) == 0,
      "ulysses_attention: a query of sizes {}, a key of {} and a value of {}; expected [batch, heads, tokens, features], key and value over the same tokens, with a number of heads that divides the query's.",
      query.sizes(),
      key.sizes(),
      value.sizes());
  const int ranks = group.size();
  if (ranks == 1) {
    return attention(query, key, value);
  }
  ulysses_heads(query.size(kHeads), group.rank(), ranks);
  const int64_t kv_heads = key.size(kHeads);
  const int64_t copies =
      std::lcm(kv_heads, static_cast<int64_t>(ranks)) / kv_heads;
  const auto divisible = [&](const at::Tensor& x) {
    return copies == 1 ? x : x.repeat_interleave(copies, kHeads);
  };
  const at::Tensor attended = attention(
      local_heads(query, group, layout),
      local_heads(divisible(key), group, layout),
      local_heads(divisible(value), group, layout));
  return local_tokens(attended, group, layout);
}

} // namespace tessera::sharding
