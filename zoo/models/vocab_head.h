// SPDX-License-Identifier: Apache-2.0
#pragma once
// `VocabHead` computes logits and loss of a language model with its own weight
// or the embedding's.

#include "tessera/zoo/layers/layer_context.h"
#include "tessera/zoo/layers/losses.h"

#include <cstdint>

namespace tessera::zoo {

/// Takes hidden states laid out as between layers. With a group the vocabulary
/// is divided: `weight` has this rank's rows [own tokens, features], as in an
/// Embedding or a column-parallel Linear with as many rows, and `bias` this
/// rank's elements, or is undefined.
class VocabHead {
 public:
  VocabHead(const LayerContext& context, int64_t vocab)
      : context_(context), vocab_(vocab) {}

  /// [B, S, features] -> [B, S, vocab], of all tokens, whole on every rank.
  at::Tensor logits(
      const at::Tensor& hidden,
      const at::Tensor& weight,
      const at::Tensor& bias) const;

  /// Mean cross-entropy with targets [B, S] of whole sequences. Without a
  /// group, the logits of all tokens are never materialized at once; with one,
  /// they are not gathered.
  at::Tensor loss(
      const at::Tensor& hidden,
      const at::Tensor& weight,
      const at::Tensor& bias,
      const at::Tensor& targets) const;

 private:
  /// The loss over the tokens of this rank, all of which may be ignored.
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
