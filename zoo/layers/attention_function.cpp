// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/attention_function.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/kernels/fused_operators.h"
#include "tessera/runtime/kernels/pattern_attention.h"
#include "tessera/sharding/tensor_parallel/local_heads.h"
#include "tessera/sharding/tensor_parallel/weights_attention.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <optional>

namespace tessera::zoo {

namespace {

/// The weights of fewer queries than this are few, and packing keys for them
/// costs more than their products.
constexpr int64_t kLeastPatternQueries = 16;

/// Whether LibTorch has no fused kernel of an accelerator for grouped key/value
/// heads: flash attention takes no mask, and the one that does takes no groups.
/// The plain one would make all attention weights.
bool needs_all_heads(const AttentionCall& call, const at::Tensor& mask) {
  return mask.defined() && !runtime::computes_on_cpu(call.query.device());
}

/// The mask of all that the call's pattern or mask hides.
at::Tensor dense_mask(const AttentionCall& call) {
  TESSERA_CHECK(
      !call.pattern.defined() || (!call.mask.defined() && !call.causal),
      "attention: a pattern is given with a mask or causal; make them a part of the pattern");
  return call.pattern.defined() ? call.pattern.dense() : call.mask;
}

bool has_pattern_kernel(const AttentionCall& call) {
  return !call.mask.defined() && call.query.dim() == 4 &&
         call.query.size(2) >= kLeastPatternQueries &&
         !(call.pattern.defined() && call.causal) &&
         runtime::uses_fused_operators() &&
         runtime::takes_pattern_attention(call.query);
}

AttentionPattern pattern_of(const AttentionCall& call) {
  if (call.pattern.defined()) {
    return call.pattern;
  }
  const int64_t queries = call.query.size(2);
  const int64_t keys = call.key.size(2);
  const at::Device device = call.query.device();
  if (!call.causal) {
    return AttentionPattern::full(queries, keys, device);
  }
  TESSERA_CHECK(
      queries == keys,
      "attention: causal, with {} queries and {} keys; give it a pattern that says which tokens the queries are",
      queries,
      keys);
  return AttentionPattern::causal(queries, keys, device);
}

at::Tensor attention_by_pattern(const AttentionCall& call) {
  const sharding::LocalHeads heads(call.query, call.key, call.value, {});
  const auto& divided = heads.layout.divided;
  const int64_t first_head =
      divided ? divided->split.begin(heads.layout.tp->group->rank()) : 0;
  return heads.full(runtime::pattern_attention(
      heads.query,
      heads.key,
      heads.value,
      pattern_of(call),
      call.scale,
      {call.dropout, first_head, call.query.size(1)}));
}

} // namespace

AttentionPattern padding_pattern(
    const at::Tensor& attention_mask,
    int64_t queries) {
  if (!attention_mask.defined()) {
    return {};
  }
  return AttentionPattern::full(
             queries, attention_mask.size(-1), attention_mask.device())
      .without_padding(attention_mask);
}

at::Tensor fused_attention(const AttentionCall& call) {
  if (has_pattern_kernel(call)) {
    return attention_by_pattern(call);
  }
  if (call.drop_weights) {
    return plain_attention(call);
  }
  const at::Tensor mask = dense_mask(call);
  const int64_t group = call.query.size(1) / call.key.size(1);
  const bool repeats = group > 1 && needs_all_heads(call, mask);
  const auto heads_of = [&](const at::Tensor& x) {
    return repeats ? x.repeat_interleave(group, 1) : x;
  };
  return at::scaled_dot_product_attention(
      call.query,
      heads_of(call.key),
      heads_of(call.value),
      mask.defined() ? std::optional<at::Tensor>(mask) : std::nullopt,
      call.dropout,
      call.causal,
      call.scale,
      /*enable_gqa=*/group > 1 && !repeats);
}

bool keeps_no_weights(
    at::Device device,
    at::ScalarType dtype,
    int64_t queries) {
  return !runtime::computes_on_cpu(device) ||
         (queries >= kLeastPatternQueries && runtime::uses_fused_operators() &&
          runtime::takes_pattern_attention(device, dtype));
}

bool skips_hidden_pairs(
    const AttentionFunction& function,
    const AttentionCall& call) {
  const auto* const target =
      function.target<at::Tensor (*)(const AttentionCall&)>();
  return target != nullptr && *target == fused_attention &&
         has_pattern_kernel(call);
}

at::Tensor plain_attention(const AttentionCall& call) {
  sharding::WeightsAttentionOptions options;
  options.mask = dense_mask(call);
  options.causal = call.causal;
  options.scale = call.scale;
  options.drop = call.drop_weights;
  if (!options.drop && call.dropout > 0) {
    options.drop = [&](const at::Tensor& weights) {
      return at::dropout(weights, call.dropout, true);
    };
  }
  return weights_attention(call.query, call.key, call.value, options);
}

} // namespace tessera::zoo
