// SPDX-License-Identifier: Apache-2.0
// The rule for attention over divided heads ([Note: DTensors]).
#include "tessera/sharding/parallel/dtensor_rules.h"
#include "tessera/sharding/parallel/parallel_dropout.h"
#include "tessera/sharding/parallel/tensor_random.h"
#include "tessera/sharding/parallel/weights_attention.h"

#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

namespace tessera::sharding {

namespace {

constexpr int64_t kHeads = -3; ///< dimension of heads in [.., h, Q, n]

/// Keys, or values, that belong to the query heads of this rank.
struct OwnHeads {
  at::Tensor x;
  bool is_one_per_query = false; ///< heads are repeated for the queries
};

/// @param queries how query heads are divided.
/// @param x keys or values, divided in the same way or whole: every rank has
///   all of their heads where there are fewer than ranks.
OwnHeads own_heads(
    const at::Tensor& x,
    const DimSplit& queries,
    Communicator& group) {
  const int64_t heads = x.size(kHeads);
  const int64_t queries_per_head = queries.size() / heads;
  const int64_t begin = queries.begin(group.rank());
  const int64_t count = queries.length(group.rank());
  const DTensorImpl* wrapper = dtensor(x);
  if (wrapper != nullptr && wrapper->divided() &&
      wrapper->dim_from_end() == kHeads) {
    const DimSplit& split = wrapper->divided()->split;
    if (split.begin(group.rank()) * queries_per_head == begin &&
        split.length(group.rank()) * queries_per_head == count) {
      return {local_of(x)};
    }
  }
  const at::Tensor whole = shared(full_tensor(x), group);
  if (begin % queries_per_head == 0 && count % queries_per_head == 0) {
    return {whole.narrow(
        kHeads, begin / queries_per_head, count / queries_per_head)};
  }
  std::vector<int64_t> of_queries;
  for (int64_t query = begin; query < begin + count; ++query) {
    of_queries.push_back(query / queries_per_head);
  }
  return {
      whole.index_select(
          whole.dim() + kHeads,
          at::tensor(of_queries, whole.options().dtype(at::kLong))),
      true};
}

/// Attention on this rank's heads, with dropout.
at::Tensor with_dropout(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const WeightsAttentionOptions& options,
    double probability,
    const DTensorImpl& like) {
  WeightsAttentionOptions dropping = options;
  dropping.drop = [&](const at::Tensor& weights) {
    return dropout_part(
        weights, probability, 1, like.divided()->split, *like.how());
  };
  return weights_attention(query, key, value, dropping);
}

at::Tensor attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double dropout,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa) {
  const DTensorImpl* like = dtensor(query);
  const bool has_own_heads = like != nullptr && like->divided() &&
                             like->dim_from_end() == kHeads &&
                             query.dim() == 4 && key.dim() == 4;
  if (!has_own_heads) {
    const at::Tensor q = full_tensor(query);
    const at::Tensor k = full_tensor(key);
    const at::Tensor v = full_tensor(value);
    const std::optional<at::Tensor> m =
        mask ? std::optional(full_tensor(*mask)) : std::nullopt;
    const OnParts parts;
    return at::scaled_dot_product_attention(
        q, k, v, m, dropout, is_causal, scale, enable_gqa);
  }
  Communicator& group = like->group();
  const DimSplit& split = like->divided()->split;
  const OnParts parts;
  const at::Tensor q = local_of(query);
  const OwnHeads k = own_heads(key, split, group);
  const OwnHeads v = own_heads(value, split, group);
  const at::Tensor m =
      mask ? operand(*mask, kHeads, split, group) : at::Tensor();
  at::Tensor result;
  if (dropout > 0 && draws_whole_masks(*like->how(), q.device())) {
    result = with_dropout(
        q,
        k.x,
        v.x,
        {.mask = m,
         .causal = is_causal,
         .scale = scale.value_or(
             1 / std::sqrt(static_cast<double>(query.size(-1))))},
        dropout,
        *like);
  } else {
    std::optional<TensorRandomScope> random;
    if (dropout > 0) {
      random.emplace(group, q.device());
    }
    result = at::scaled_dot_product_attention(
        q,
        k.x,
        v.x,
        mask ? std::optional(m) : std::nullopt,
        dropout,
        is_causal,
        scale,
        enable_gqa && !k.is_one_per_query);
  }
  return make_dtensor(
      result, DividedDim{result.dim() + kHeads, split}, like->how());
}

} // namespace

void register_attention_rule(torch::Library& library) {
  library.impl("scaled_dot_product_attention", TORCH_FN(attention));
}

} // namespace tessera::sharding
