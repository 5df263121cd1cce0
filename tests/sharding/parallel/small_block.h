// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small transformer's block of parallel layers.

#include "sharding/parallel/parallel_attention.h"
#include "sharding/parallel/sequence_layer_norm.h"
#include "tessera/sharding/parallel/parallel_dropout.h"
#include "tessera/sharding/parallel/parallel_linear.h"
#include "tessera/sharding/parallel/random_key.h"

#include <torch/torch.h>

#include <optional>

namespace tessera {

constexpr int64_t kFeatures = 24;
constexpr int64_t kVocab = 37; // uneven over 2, 3 and 4 ranks
constexpr int64_t kLength = 12;

const DistributedParameterOptions kDouble{at::kDouble};

struct BlockImpl : torch::nn::Module {
  BlockImpl(
      const TensorParallel& how,
      double dropout,
      std::optional<int64_t> number = {})
      : how(how), dropout(dropout), number(number) {
    const SequenceLayerNormOptions norm{
        .features = kFeatures, .parameters = kDouble};
    norm1 = register_module("norm1", SequenceLayerNorm(how, norm));
    norm2 = register_module("norm2", SequenceLayerNorm(how, norm));
    ParallelAttentionOptions attention_options;
    attention_options.features = kFeatures;
    attention_options.heads = 8;
    attention_options.kv_heads = 4;
    attention_options.causal = true;
    attention_options.dropout = dropout;
    attention_options.parameters = kDouble;
    attention =
        register_module("attention", ParallelAttention(how, attention_options));
    ParallelLinearOptions linear;
    linear.parameters = kDouble;
    linear.in = kFeatures;
    linear.out = 50; // uneven over 3 and 4 ranks
    up = register_module("up", ColumnParallelLinear(how, linear));
    linear.in = 50;
    linear.out = kFeatures;
    down = register_module("down", RowParallelLinear(how, linear));
  }

  at::Tensor forward(const at::Tensor& x) {
    const RandomLayerScope random(number, x.device());
    const at::Tensor middle = x + drop(attention->forward(norm1->forward(x)));
    at::Tensor inner = at::gelu(up->forward(norm2->forward(middle)));
    if (is_training()) {
      inner = dropout_part(inner, dropout, -1, up->split(), how);
    }
    return middle + drop(down->forward(inner));
  }

  /// Of activations between layers.
  at::Tensor drop(const at::Tensor& x) {
    return is_training() ? dropout_between(x, dropout, how) : x;
  }

  TensorParallel how;
  double dropout;
  std::optional<int64_t> number;
  SequenceLayerNorm norm1{nullptr}, norm2{nullptr};
  ParallelAttention attention{nullptr};
  ColumnParallelLinear up{nullptr};
  RowParallelLinear down{nullptr};
};
TORCH_MODULE(Block);

} // namespace tessera
