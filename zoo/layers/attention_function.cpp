// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/attention_function.h"

#include "tessera/sharding/parallel/weights_attention.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <optional>

namespace tessera::zoo {

at::Tensor fused_attention(const AttentionCall& call) {
  if (call.drop_weights) {
    return plain_attention(call);
  }
  return at::scaled_dot_product_attention(
      call.query,
      call.key,
      call.value,
      call.mask.defined() ? std::optional<at::Tensor>(call.mask) : std::nullopt,
      call.dropout,
      call.causal,
      call.scale,
      /*enable_gqa=*/call.query.size(1) != call.key.size(1));
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
