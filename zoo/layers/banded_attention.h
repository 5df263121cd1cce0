// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BandedAttention` is sliding-window attention with global tokens (Longformer,
// arXiv:2004.05150); its memory is linear in the sequence length.

#include "tessera/zoo/layers/attention.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace tessera::zoo {

/// The local, global and padding tokens of a batch. Global tokens attend to all
/// tokens and are attended to by all.
struct BandedTokens {
  at::Tensor seen; ///< bool [B, S]: not padding
  at::Tensor local; ///< bool [B, S]: neither padding nor global
  /// int64 [B, G], where G is the largest number of global tokens in a row:
  /// their positions in order. Rows with fewer are filled with other positions.
  at::Tensor global_positions;
  at::Tensor is_global; ///< bool [B, G]: false for the filled positions

  /// @param attention_mask [B, S]: 0 padding, 1 local, 2 global; or undefined.
  /// @param global_mask [B, S], nonzero for global tokens; or undefined.
  /// @param ids [B, S], for sizes and device.
  /// Synchronizes with the device.
  static BandedTokens of(
      const at::Tensor& attention_mask,
      const at::Tensor& global_mask,
      const at::Tensor& ids);
};

template <typename Visit>
void visit_tensors_of(BandedTokens& tokens, Visit&& visit) {
  visit(tokens.seen);
  visit(tokens.local);
  visit(tokens.global_positions);
  visit(tokens.is_global);
}

/// Attention of every query to the keys up to `reach` positions away and to the
/// global tokens: each block of `reach` queries and its three blocks of keys
/// become one row of a batch. The results at global tokens must be replaced by
/// the caller.
/// @param call for whole sequences, without a mask; query, key and value have
///     the same tokens.
/// @return [B, h, S, m], 0 at padding.
at::Tensor banded_attention(
    const AttentionCall& call,
    const BandedTokens& tokens,
    int64_t reach,
    const AttentionFunction& function);

/// Self-attention with banded_attention(). Global tokens attend to all tokens
/// through separate projections `global_query`, `global_key` and
/// `global_value`, partitioned as those of Attention.
class BandedAttentionImpl : public torch::nn::Module {
 public:
  /// @param options sizes, biases of all projections, dropout and function.
  /// @param reach at least 1.
  BandedAttentionImpl(
      const LayerContext& context,
      const AttentionOptions& options,
      int64_t reach);

  /// hidden [B, S, features] between layers -> the same. Collective with a
  /// group.
  at::Tensor forward(const at::Tensor& hidden, const BandedTokens& tokens);

  /// As Attention::recomputes_core.
  bool recomputes_core = false;

 private:
  at::Tensor attended(AttentionCall call) const;
  at::Tensor by_head(const at::Tensor& features) const;
  AttentionCall call_of(
      const at::Tensor& query,
      const at::Tensor& key,
      const at::Tensor& value) const;
  /// The results of the global tokens: [B, h, G, n].
  at::Tensor look_at_all(const at::Tensor& entered, const BandedTokens& tokens);

  LayerContext context_;
  AttentionOptions options_;
  int64_t reach_;
  Linear query_, key_, value_, output_;
  Linear global_query_, global_key_, global_value_;
};
TORCH_MODULE(BandedAttention);

} // namespace tessera::zoo
