// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention whose heads are divided over a tensor-parallel group, for models of
// tests: views state the number of all heads.

#include "tessera/sharding/tensor_parallel/parallel_linear.h"
#include "tessera/sharding/tensor_parallel/tensor_plan.h"

#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

namespace tessera {

struct ParallelAttentionOptions {
  int64_t features = 0;
  int64_t heads = 0;
  /// Heads of keys and values, each shared by heads / kv_heads neighbouring
  /// ones (arXiv:2305.13245).
  int64_t kv_heads = 0;
  bool bias = true;
  bool causal = false;
  double dropout = 0; ///< of attention weights, while training
  DistributedParameterOptions parameters;
};

/// Self-attention: q_proj, k_proj and v_proj by column, o_proj by row. A rank
/// has some of the kv heads and all heads that share them; they need not divide
/// evenly.
struct ParallelAttentionImpl : torch::nn::Module {
  ParallelAttentionImpl(
      const TensorParallel& tp,
      const ParallelAttentionOptions& options)
      : options(options), head_features(options.features / options.heads) {
    const int64_t q_unit = head_features * (options.heads / options.kv_heads);
    ParallelLinearOptions linear{
        .in = options.features,
        .out = options.features,
        .bias = options.bias,
        .unit = q_unit,
        .parameters = options.parameters};
    q_proj = register_module("q_proj", ColumnParallelLinear(tp, linear));
    linear.out = options.kv_heads * head_features;
    linear.unit = head_features;
    k_proj = register_module("k_proj", ColumnParallelLinear(tp, linear));
    v_proj = register_module("v_proj", ColumnParallelLinear(tp, linear));
    linear.out = options.features;
    linear.unit = q_unit;
    o_proj = register_module("o_proj", RowParallelLinear(tp, linear));
  }

  /// @param x [batch, sequence, features].
  /// @param mask broadcast to [batch, heads, sequence, sequence].
  at::Tensor forward(
      const at::Tensor& x,
      const std::optional<at::Tensor>& mask = {}) {
    const auto by_head = [&](const at::Tensor& y, int64_t heads) {
      return y.view({x.size(0), x.size(1), heads, head_features})
          .transpose(1, 2);
    };
    const auto projected = linear_each(
        x,
        {{q_proj->weight, q_proj->bias},
         {k_proj->weight, k_proj->bias},
         {v_proj->weight, v_proj->bias}});
    const at::Tensor attended = at::scaled_dot_product_attention(
        by_head(projected[0], options.heads),
        by_head(projected[1], options.kv_heads),
        by_head(projected[2], options.kv_heads),
        mask,
        is_training() ? options.dropout : 0,
        options.causal,
        /*scale=*/std::nullopt,
        /*enable_gqa=*/options.heads != options.kv_heads);
    return o_proj->forward(attended.transpose(1, 2).flatten(2));
  }

  ParallelAttentionOptions options;
  int64_t head_features;
  ColumnParallelLinear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr};
  RowParallelLinear o_proj{nullptr};
};
TORCH_MODULE(ParallelAttention);

} // namespace tessera
