// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/parallel/parallel_attention.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/overlapped_linear.h"
#include "tessera/sharding/parallel/parallel_dropout.h"
#include "tessera/sharding/parallel/tensor_random.h"
#include "tessera/sharding/parallel/weights_attention.h"

#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>

namespace tessera {

namespace {

ParallelAttentionOptions filled(ParallelAttentionOptions options, int ranks) {
  TESSERA_CHECK(
      options.heads >= 1 &&
          (options.head_features > 0 || options.features % options.heads == 0),
      "attention with {} features has {} heads, which do not divide them; or state head_features.",
      options.features,
      options.heads);
  if (options.head_features == 0) {
    options.head_features = options.features / options.heads;
  }
  if (options.kv_heads == 0) {
    options.kv_heads = options.heads;
  }
  TESSERA_CHECK(
      options.kv_heads >= 1 && options.heads % options.kv_heads == 0,
      "attention has {} kv heads, which do not divide its {} heads.",
      options.kv_heads,
      options.heads);
  TESSERA_CHECK(
      options.kv_heads >= ranks,
      "attention has {} kv heads for {} tensor-parallel ranks; each needs one or more. Use a tensor-parallel size of {} or less.",
      options.kv_heads,
      ranks,
      options.kv_heads);
  return options;
}

/// [batch, sequence, heads * n] to [batch, heads, sequence, n].
at::Tensor by_head(const at::Tensor& x, int64_t head_features) {
  return x.unflatten(-1, {-1, head_features}).transpose(1, 2);
}

} // namespace

ParallelAttentionImpl::ParallelAttentionImpl(
    const TensorParallel& how,
    const ParallelAttentionOptions& options)
    : ParallelModule(how), options_(filled(options, how.group->size())) {
  const int64_t kv_unit = options_.head_features;
  const int64_t q_unit = kv_unit * (options_.heads / options_.kv_heads);
  ParallelLinearOptions linear;
  linear.in = options_.features;
  linear.bias = options_.bias;
  linear.weight_init = options_.weight_init;
  linear.bias_init = options_.bias_init;
  linear.parameters = options_.parameters;

  linear.out = options_.kv_heads * q_unit;
  linear.unit = q_unit;
  q_proj = register_module("q_proj", ColumnParallelLinear(how, linear));
  linear.out = options_.kv_heads * kv_unit;
  linear.unit = kv_unit;
  k_proj = register_module("k_proj", ColumnParallelLinear(how, linear));
  v_proj = register_module("v_proj", ColumnParallelLinear(how, linear));
  linear.in = options_.kv_heads * q_unit;
  linear.out = options_.features;
  linear.unit = q_unit;
  o_proj = register_module("o_proj", RowParallelLinear(how, linear));
}

at::Tensor ParallelAttentionImpl::forward(
    const at::Tensor& x,
    const std::optional<at::Tensor>& mask) {
  const auto projected = enter_linear(
      x,
      {{q_proj->weight, q_proj->bias},
       {k_proj->weight, k_proj->bias},
       {v_proj->weight, v_proj->bias}},
      how());
  const at::Tensor query = by_head(projected[0], options_.head_features);
  const at::Tensor key = by_head(projected[1], options_.head_features);
  const at::Tensor value = by_head(projected[2], options_.head_features);
  const double dropout = is_training() ? options_.dropout : 0;
  at::Tensor attended;
  if (dropout > 0 && draws_whole_masks(how(), x.device())) {
    WeightsAttentionOptions attention;
    attention.mask = mask.value_or(at::Tensor());
    attention.causal = options_.causal;
    attention.scale =
        1 / std::sqrt(static_cast<double>(options_.head_features));
    attention.drop = [&](const at::Tensor& weights) {
      const DimSplit heads(
          options_.heads,
          how().group->size(),
          options_.heads / options_.kv_heads);
      return dropout_part(weights, dropout, 1, heads, how());
    };
    attended = weights_attention(query, key, value, attention);
  } else {
    const TensorRandomScope own(*how().group, x.device());
    attended = at::scaled_dot_product_attention(
        query,
        key,
        value,
        mask,
        dropout,
        options_.causal,
        /*scale=*/std::nullopt,
        /*enable_gqa=*/options_.heads != options_.kv_heads);
  }
  return o_proj->forward(attended.transpose(1, 2).flatten(2));
}

} // namespace tessera
