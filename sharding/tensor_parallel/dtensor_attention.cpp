// SPDX-License-Identifier: Apache-2.0
// The rule for attention over divided heads ([Note: DTensors]).
#include "tessera/sharding/tensor_parallel/dtensor_rules.h"
#include "tessera/sharding/tensor_parallel/local_heads.h"
#include "tessera/sharding/tensor_parallel/parallel_dropout.h"
#include "tessera/sharding/tensor_parallel/tensor_random.h"
#include "tessera/sharding/tensor_parallel/weights_attention.h"

#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>
#include <optional>

namespace tessera::sharding {

namespace {

std::optional<at::Tensor> optional(const at::Tensor& x) {
  return x.defined() ? std::optional(x) : std::nullopt;
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
  const bool has_local_heads = like != nullptr && like->divided() &&
                               query.dim() == 4 && key.dim() == 4 &&
                               like->divided()->dim == 1;
  if (!has_local_heads) {
    const at::Tensor q = full_tensor(query);
    const at::Tensor k = full_tensor(key);
    const at::Tensor v = full_tensor(value);
    const at::Tensor m = full_tensor(mask.value_or(at::Tensor()));
    const DTensorGuard parts;
    return at::scaled_dot_product_attention(
        q, k, v, optional(m), dropout, is_causal, scale, enable_gqa);
  }
  const DTensorGuard parts;
  const LocalHeads local(query, key, value, mask.value_or(at::Tensor()));
  if (dropout > 0 && draws_full_masks(*like->tp(), query.device())) {
    WeightsAttentionOptions options{
        .mask = local.mask,
        .causal = is_causal,
        .scale =
            scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))))};
    options.drop = [&](const at::Tensor& weights) {
      return dropout_part(
          weights, dropout, 1, like->divided()->split, *like->tp());
    };
    return local.full(
        weights_attention(local.query, local.key, local.value, options));
  }
  std::optional<TensorRandomScope> random;
  if (dropout > 0) {
    random.emplace(like->group(), query.device());
  }
  return local.full(at::scaled_dot_product_attention(
      local.query,
      local.key,
      local.value,
      optional(local.mask),
      dropout,
      is_causal,
      scale,
      enable_gqa && local.query.size(1) != local.key.size(1)));
}

} // namespace

void register_attention_rule(torch::Library& library) {
  library.impl("scaled_dot_product_attention", TORCH_FN(attention));
}

} // namespace tessera::sharding
