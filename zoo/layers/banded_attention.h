// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention within windows, with tokens that see all and are seen by all
// (arXiv:2004.05150), in memory that grows with the length and not with its
// square.

#include "tessera/zoo/layers/attention.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace tessera::zoo {

/// Which tokens of a batch see what: those of padding nothing, global ones
/// all.
struct BandedTokens {
  at::Tensor seen; ///< bool [B, S]: no padding
  at::Tensor local; ///< bool [B, S]: of those, the ones that are not global
  /// int64 [B, G], G the most global tokens that a row has: where they are, in
  /// order; behind them, in rows that have fewer, other places.
  at::Tensor global_places;
  at::Tensor is_global; ///< bool [B, G]: false for those other places

  /// @param attention_mask [B, S]: 0 padding, 1 a token, 2 a global one; or
  ///     undefined.
  /// @param global_mask [B, S], not 0 for global tokens, or undefined.
  /// @param ids [B, S], for sizes and device.
  /// Waits for the device.
  static BandedTokens of(
      const at::Tensor& attention_mask,
      const at::Tensor& global_mask,
      const at::Tensor& ids);
};

template <typename Visit>
void visit_tensors_of(BandedTokens& tokens, Visit&& visit) {
  visit(tokens.seen);
  visit(tokens.local);
  visit(tokens.global_places);
  visit(tokens.is_global);
}

/// Every query with the keys up to `reach` places away, and with the global
/// ones: blocks of `reach` queries and their three blocks of keys become rows
/// of a batch. What stands where a token is global is not that token's result.
/// @param call of whole sequences, without a mask; its query, key and value
///     have the same tokens.
/// @return [B, h, S, m], 0 where a token is padding.
at::Tensor banded_attention(
    const AttentionCall& call,
    const BandedTokens& tokens,
    int64_t reach,
    const AttentionFunction& function);

/// Self-attention with it. Global tokens see all others by projections of their
/// own: `global_query`, `global_key` and `global_value` beside those of
/// Attention, divided as they are.
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

 private:
  at::Tensor by_head(const at::Tensor& features) const;
  AttentionCall call_of(
      const at::Tensor& query,
      const at::Tensor& key,
      const at::Tensor& value) const;
  /// Of the global tokens: [B, h, G, n].
  at::Tensor look_at_all(const at::Tensor& entered, const BandedTokens& tokens);

  LayerContext context_;
  AttentionOptions options_;
  int64_t reach_;
  Linear query_, key_, value_, output_;
  Linear global_query_, global_key_, global_value_;
};
TORCH_MODULE(BandedAttention);

} // namespace tessera::zoo
