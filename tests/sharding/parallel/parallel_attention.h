// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention whose heads are divided over a tensor-parallel group, for models of
// tests.

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/overlapped_linear.h"
#include "tessera/sharding/parallel/parallel_dropout.h"
#include "tessera/sharding/parallel/parallel_linear.h"
#include "tessera/sharding/parallel/tensor_random.h"
#include "tessera/sharding/parallel/weights_attention.h"

#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/pimpl.h>

#include <cmath>
#include <cstdint>
#include <optional>

namespace tessera {

struct ParallelAttentionOptions {
  int64_t features = 0;
  int64_t heads = 0;
  /// Heads of keys and values, each shared by heads / kv_heads neighbouring
  /// ones (arXiv:2305.13245); 0: as many as heads.
  int64_t kv_heads = 0;
  int64_t head_features = 0; ///< 0: features / heads
  bool bias = true;
  bool causal = false;
  double dropout = 0; ///< of attention weights, while training
  InitMethod weight_init; ///< of all four; see ParallelLinearOptions
  InitMethod bias_init;
  DistributedParameterOptions parameters;
};

/// Self-attention: q_proj, k_proj and v_proj by column, o_proj by row. A rank
/// has some of the kv heads and all heads that share them; they need not divide
/// evenly. See DropoutMasks for dropout.
class ParallelAttentionImpl : public ParallelModule {
 public:
  /// @throws tessera::Error when heads do not divide features, kv heads do not
  ///     divide heads, or there are fewer kv heads than ranks.
  ParallelAttentionImpl(
      const TensorParallel& how,
      const ParallelAttentionOptions& options);

  /// @param x [batch, sequence, features] between layers.
  /// @param mask for whole sequences, as scaled_dot_product_attention takes it:
  ///     broadcast to [batch, own heads, sequence, sequence].
  /// @return as x. Collective unless the group has one rank.
  at::Tensor forward(
      const at::Tensor& x,
      const std::optional<at::Tensor>& mask = {});

  ColumnParallelLinear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr};
  RowParallelLinear o_proj{nullptr};

 private:
  ParallelAttentionOptions options_;
};
TORCH_MODULE(ParallelAttention);

namespace detail {

inline ParallelAttentionOptions filled(
    ParallelAttentionOptions options,
    int ranks) {
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
inline at::Tensor by_head(const at::Tensor& x, int64_t head_features) {
  return x.unflatten(-1, {-1, head_features}).transpose(1, 2);
}

} // namespace detail

inline ParallelAttentionImpl::ParallelAttentionImpl(
    const TensorParallel& how,
    const ParallelAttentionOptions& options)
    : ParallelModule(how),
      options_(detail::filled(options, how.group->size())) {
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

inline at::Tensor ParallelAttentionImpl::forward(
    const at::Tensor& x,
    const std::optional<at::Tensor>& mask) {
  const auto projected = sharding::enter_linear(
      x,
      {{q_proj->weight, q_proj->bias},
       {k_proj->weight, k_proj->bias},
       {v_proj->weight, v_proj->bias}},
      how());
  const at::Tensor query =
      detail::by_head(projected[0], options_.head_features);
  const at::Tensor key = detail::by_head(projected[1], options_.head_features);
  const at::Tensor value =
      detail::by_head(projected[2], options_.head_features);
  const double dropout = is_training() ? options_.dropout : 0;
  at::Tensor attended;
  if (dropout > 0 && draws_whole_masks(how(), x.device())) {
    sharding::WeightsAttentionOptions attention;
    attention.mask = mask.value_or(at::Tensor());
    attention.causal = options_.causal;
    attention.scale =
        1 / std::sqrt(static_cast<double>(options_.head_features));
    attention.drop = [&](const at::Tensor& weights) {
      const sharding::DimSplit heads(
          options_.heads,
          how().group->size(),
          options_.heads / options_.kv_heads);
      return dropout_part(weights, dropout, 1, heads, how());
    };
    attended = weights_attention(query, key, value, attention);
  } else {
    const sharding::TensorRandomScope own(*how().group, x.device());
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
