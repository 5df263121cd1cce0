// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/attention_function.h"

#include "tessera/zoo/layers/masks.h"

#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/types.h>

#include <limits>
#include <optional>

namespace tessera::zoo {

at::Tensor fused_attention(const AttentionCall& call) {
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
  const int64_t shared = call.query.size(1) / call.key.size(1);
  const auto for_each_query = [&](const at::Tensor& x) {
    return shared == 1 ? x : x.repeat_interleave(shared, 1);
  };
  at::Tensor scores =
      at::matmul(call.query, for_each_query(call.key).transpose(-1, -2)) *
      call.scale;
  at::Tensor mask = call.mask;
  if (call.causal) {
    mask = causal_mask(call.query.size(2), call.query.device());
  }
  if (mask.defined()) {
    scores = mask.scalar_type() == at::kBool
                 ? scores.masked_fill(
                       ~mask, -std::numeric_limits<double>::infinity())
                 : scores + mask;
  }
  const at::Tensor weights =
      at::softmax(scores, -1, at::kFloat).to(call.value.scalar_type());
  return at::matmul(
      at::dropout(weights, call.dropout, call.dropout > 0),
      for_each_query(call.value));
}

} // namespace tessera::zoo
