// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Attention` is multi-head self- or cross-attention; query heads may share
// heads of keys and values (grouped-query attention).

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
  /// Heads of keys and values, each shared by heads / kv_heads consecutive
  /// query heads (arXiv:2305.13245); 0: as many as heads.
  int64_t kv_heads = 0;
  int64_t head_features = 0; ///< 0: features / heads
  /// input size of cross-attention's keys and values; 0: features
  int64_t memory_features = 0;
  bool query_bias = true;
  bool key_bias = true;
  bool value_bias = true;
  bool output_bias = true;
  /// Norm of queries and keys, before rotation.
  std::optional<NormOptions> query_key_norm;
  /// query_key_norm is over the features of all heads (arXiv:2501.00656), in
  /// place of each head's.
  bool norms_all_heads = false;
  bool rotates_values = false; ///< rotary positions rotate values too
  std::optional<double> scale; ///< by default 1 / sqrt(head_features)
  bool causal = false;
  double dropout = 0; ///< of attention weights, in training mode
  double deviation = 0.02; ///< standard deviation of initial weights
  double query_deviation = 0; ///< of the query projection; 0: as the others
  double output_deviation = 0; ///< of the output projection; 0: as the others
  bool length_scale = false; ///< of all projections; see LinearOptions
  AttentionFunction function = fused_attention;

  /// These options with the zeros replaced by their defaults.
  /// @throws tessera::Error if features are not divisible by heads, or heads
  ///   are not divisible by kv_heads.
  AttentionOptions filled() const;
};

/// The inputs of one call other than the hidden states; all may be undefined.
struct AttentionInput {
  /// The source of keys and values: [B, K, memory_features], laid out as
  /// between layers.
  at::Tensor memory;
  /// Of whole sequences. With AttentionOptions::causal it must be causal.
  AttentionPattern pattern;
  /// What a pattern does not describe: bool, for whole sequences, broadcast to
  /// [B, heads, Q, K]; likewise.
  at::Tensor mask;
  at::Tensor bias; ///< [1 or B, heads, 1 or Q, K], added to the scaled product
  RotaryTables rotary;
  /// Keys and values of earlier tokens, extended by this call; see
  /// KeyValueCache. Patterns, masks and biases then cover the keys of all
  /// tokens and the queries of the new ones. With `memory`, its keys and values
  /// are computed once.
  KeyValueCache* cache = nullptr;
};

/// Computes what lies between a layer's projections: the attention function,
/// with the dropout that is correct on ranks that hold some of the heads or
/// tokens.
at::Tensor attend(
    const LayerContext& context,
    const AttentionOptions& options,
    AttentionCall& call);

/// As attend(), but keeps only the arguments for backward, which computes
/// scores, softmax and dropout again (selective recomputation,
/// arXiv:2205.05198). It saves memory where the attention function keeps the
/// weights; fused kernels without dropout, and those of CUDA, do not.
at::Tensor recomputed_attend(
    const LayerContext& context,
    const AttentionOptions& options,
    const AttentionCall& call);

/// Column-parallel projections query, key and value, and a row-parallel output
/// projection. In a tensor-parallel group a rank holds some of the kv heads and
/// all query heads that share them; with fewer kv heads than ranks it holds
/// some of the query heads and all kv heads. Under context parallelism
/// attention still covers the whole sequence; see context_attention().
class AttentionImpl : public torch::nn::Module {
 public:
  /// @throws tessera::Error as AttentionOptions::filled().
  AttentionImpl(const LayerContext& context, const AttentionOptions& options);

  /// hidden [B, Q, features] between layers -> the same. Collective with a
  /// group. Patterns, masks, biases and K cover whole sequences; hidden states
  /// and rotary tables cover this rank's tokens.
  at::Tensor forward(
      const at::Tensor& hidden,
      const AttentionInput& input = {});

  /// Whether what lies between the projections is recomputed_attend().
  bool recomputes_core = false;

 private:
  /// Query, key and value by head, [B, heads, S, head features], normalized and
  /// rotated.
  std::array<at::Tensor, 3> project(
      const at::Tensor& hidden,
      const AttentionInput& input);
  LayerContext context_;
  AttentionOptions options_;
  Linear query_, key_, value_, output_;
  Norm query_norm_{nullptr}, key_norm_{nullptr};
};
TORCH_MODULE(Attention);

} // namespace tessera::zoo
