// SPDX-License-Identifier: Apache-2.0
#pragma once
// The head of a language model over a weight of its own or the embedding's.

#include "tessera/zoo/layers/layer_context.h"
#include "tessera/zoo/layers/losses.h"

#include <cstdint>

namespace tessera::zoo {

/// Logits and losses of hidden states between layers. With a group the
/// vocabulary is divided: `weight` has this rank's rows [own tokens, features],
/// as an Embedding or a column-parallel Linear of so many rows has them, and
/// `bias` this rank's numbers, or is undefined.
class VocabHead {
 public:
  VocabHead(const LayerContext& context, int64_t vocab)
      : context_(context), vocab_(vocab) {}

  /// [B, S, features] -> [B, S, vocab], whole on every rank: of all tokens.
  at::Tensor logits(
      const at::Tensor& hidden,
      const at::Tensor& weight,
      const at::Tensor& bias) const;

  /// Mean cross-entropy with targets [B, S] of whole sequences, without logits
  /// for all tokens at a time where there is no group, and without gathering
  /// them where there is one.
  at::Tensor loss(
      const at::Tensor& hidden,
      const at::Tensor& weight,
      const at::Tensor& bias,
      const at::Tensor& targets) const;

 private:
  /// Over the tokens of this rank, of which there may be none that counts.
  at::Tensor own_loss(
      const at::Tensor& hidden,
      const at::Tensor& weight,
      const at::Tensor& bias,
      const at::Tensor& targets,
      bool is_mean) const;

  LayerContext context_;
  int64_t vocab_;
};

} // namespace tessera::zoo
