// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/attention_function.h"

#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/sharding/tensor_parallel/weights_attention.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <optional>

namespace tessera::zoo {

namespace {

/// Whether LibTorch has no fused kernel of an accelerator for grouped key/value
/// heads: flash attention takes no mask, and the one that does takes no groups.
/// The plain one would make all attention weights.
bool needs_all_heads(const AttentionCall& call) {
  return call.mask.defined() && !runtime::computes_on_cpu(call.query.device());
}

} // namespace

at::Tensor fused_attention(const AttentionCall& call) {
  if (call.drop_weights) {
    return plain_attention(call);
  }
  const int64_t group = call.query.size(1) / call.key.size(1);
  const bool repeats = group > 1 && needs_all_heads(call);
  const auto heads_of = [&](const at::Tensor& x) {
    return repeats ? x.repeat_interleave(group, 1) : x;
  };
  return at::scaled_dot_product_attention(
      call.query,
      heads_of(call.key),
      heads_of(call.value),
      call.mask.defined() ? std::optional<at::Tensor>(call.mask) : std::nullopt,
      call.dropout,
      call.causal,
      call.scale,
      /*enable_gqa=*/group > 1 && !repeats);
}

at::Tensor plain_attention(const AttentionCall& call) {
  sharding::WeightsAttentionOptions options;
  options.mask = call.mask;
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
