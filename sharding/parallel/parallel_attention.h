// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention whose heads are divided over a tensor-parallel group.

#include "tessera/sharding/parallel/parallel_linear.h"

#include <torch/nn/pimpl.h>

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

} // namespace tessera
