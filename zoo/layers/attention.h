// SPDX-License-Identifier: Apache-2.0
#pragma once
// Multi-head attention: self or cross, with heads of keys and values that are
// shared or not.

#include "tessera/zoo/layers/attention_function.h"
#include "tessera/zoo/layers/key_value_cache.h"
#include "tessera/zoo/layers/linear.h"
#include "tessera/zoo/layers/norm.h"
#include "tessera/zoo/layers/rotary.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <cstdint>
#include <optional>

namespace tessera::zoo {

struct AttentionOptions {
  int64_t features = 0;
  int64_t heads = 0;
  /// Heads of keys and values, each shared by heads / kv_heads neighbouring
  /// ones (arXiv:2305.13245); 0: as many as heads.
  int64_t kv_heads = 0;
  int64_t head_features = 0; ///< 0: features / heads
  int64_t memory_features = 0; ///< of cross-attention's keys; 0: features
  bool query_bias = true;
  bool key_bias = true;
  bool value_bias = true;
  bool output_bias = true;
  /// Of each head's query and key, before they are rotated; its features are
  /// the head's.
  std::optional<NormOptions> query_key_norm;
  std::optional<double> scale; ///< by default 1 / sqrt(head_features)
  bool causal = false;
  double dropout = 0; ///< of attention weights, while training
  double deviation = 0.02; ///< of fresh weights
  double query_deviation = 0; ///< of the query's; 0: as the others
  double output_deviation = 0; ///< of the output's; 0: as the others
  AttentionFunction function = fused_attention;
};

/// What comes with the hidden states of a call; everything may be undefined.
struct AttentionInput {
  /// Keys and values come from it: [B, K, memory_features] between layers.
  at::Tensor memory;
  /// bool, for whole sequences: broadcast to [B, heads, Q, K]. With
  /// AttentionOptions::causal it is to have the causal part in it.
  at::Tensor mask;
  at::Tensor bias; ///< [1 or B, heads, 1 or Q, K], added to the product
  RotaryTables rotary;
  /// Of the tokens before these, and for these; see KeyValueCache. Masks and
  /// biases are then for keys of all tokens, queries of these. With `memory`
  /// its keys and values are made once.
  KeyValueCache* cache = nullptr;
};

/// Projections query, key, value by column and output by row. Over a group a
/// rank has some of the kv heads and all heads that share them. Of divided
/// sequences, attention is that of the whole ones; see context_attention().
class AttentionImpl : public torch::nn::Module {
 public:
  /// @throws tessera::Error when heads do not divide features, or kv heads do
  ///     not divide heads, or there are fewer kv heads than ranks.
  AttentionImpl(const LayerContext& context, const AttentionOptions& options);

  /// hidden [B, Q, features] between layers -> the same. Collective with a
  /// group. Masks, biases and K are of whole sequences; hidden states and
  /// rotary tables have this rank's tokens.
  at::Tensor forward(
      const at::Tensor& hidden,
      const AttentionInput& input = {});

 private:
  /// Query, key and value by head, [B, heads, S, features of a head], normed
  /// and rotated.
  std::array<at::Tensor, 3> project(
      const at::Tensor& hidden,
      const AttentionInput& input);
  at::Tensor mask_of(const AttentionInput& input, const at::Tensor& query)
      const;
  /// What is between the projections, with its dropout.
  at::Tensor attend(AttentionCall& call) const;

  LayerContext context_;
  AttentionOptions options_;
  Linear query_, key_, value_, output_;
  Norm query_norm_{nullptr}, key_norm_{nullptr};
};
TORCH_MODULE(Attention);

} // namespace tessera::zoo
