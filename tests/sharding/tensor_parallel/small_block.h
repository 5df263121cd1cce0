// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small transformer's block whose linear layers are parallel; the rest is
// written as for one rank.

#include "sharding/tensor_parallel/parallel_attention.h"
#include "tessera/runtime/random/random_key.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"
#include "tessera/sharding/tensor_parallel/parallel_linear.h"

#include <torch/torch.h>

#include <optional>

namespace tessera {

constexpr int64_t kFeatures = 24;
constexpr int64_t kVocab = 37; // uneven over 2, 3 and 4 ranks
constexpr int64_t kLength = 12;

const DistributedParameterOptions kDouble{at::kDouble};

inline torch::nn::LayerNorm double_norm() {
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({kFeatures}));
  norm->to(at::kDouble);
  return norm;
}

struct BlockImpl : torch::nn::Module {
  BlockImpl(
      const TensorParallel& tp,
      double dropout,
      std::optional<int64_t> number = {})
      : dropout(dropout), number(number) {
    norm1 = register_module("norm1", double_norm());
    norm2 = register_module("norm2", double_norm());
    attention = register_module(
        "attention",
        ParallelAttention(
            tp,
            ParallelAttentionOptions{
                .features = kFeatures,
                .heads = 8,
                .kv_heads = 4,
                .causal = true,
                .dropout = dropout,
                .parameters = kDouble}));
    ParallelLinearOptions linear;
    linear.parameters = kDouble;
    linear.in = kFeatures;
    linear.out = 50; // uneven over 3 and 4 ranks
    up = register_module("up", ColumnParallelLinear(tp, linear));
    linear.in = 50;
    linear.out = kFeatures;
    down = register_module("down", RowParallelLinear(tp, linear));
  }

  at::Tensor forward(const at::Tensor& x) {
    const RandomLayerScope random(number, x.device());
    const at::Tensor middle = x + drop(attention->forward(norm1->forward(x)));
    const at::Tensor inner = at::gelu(up->forward(norm2->forward(middle)));
    return middle + drop(down->forward(drop(inner)));
  }

  at::Tensor drop(const at::Tensor& x) const {
    return torch::dropout(x, dropout, is_training());
  }

  double dropout;
  std::optional<int64_t> number;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  ParallelAttention attention{nullptr};
  ColumnParallelLinear up{nullptr};
  RowParallelLinear down{nullptr};
};
TORCH_MODULE(Block);

/// What a pipeline stage has received of the one before it, which has sent
/// local_tensor().
inline at::Tensor received(const at::Tensor& x, const TensorParallel& tp) {
  return tp.sequence ? from_local_tensor(x, tp.sequence_dim, tp) : x;
}

} // namespace tessera
