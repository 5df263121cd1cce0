// SPDX-License-Identifier: Apache-2.0
#pragma once
// `VocabHead` computes logits and loss of a language model with its own weight
// or the embedding's.

#include "tessera/zoo/inputs/model_input.h"
#include "tessera/zoo/layers/layer_context.h"
#include "tessera/zoo/layers/losses.h"

namespace tessera::zoo {

/// With a group the vocabulary is divided: `weight` [vocab, features] is that
/// of an Embedding or of a column-parallel Linear; `bias` is whole, or that of
/// the Linear, or undefined.
class VocabHead {
 public:
  explicit VocabHead(const LayerContext& context) : context_(context) {}

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

  /// Adds the logits of all tokens, or of the last one with
  /// ModelInput::last_logits, and with targets the loss; the loss alone with
  /// ModelInput::loss_only.
  /// @param targets [B, S] of whole sequences, or undefined.
  /// @throws tessera::Error if only the loss is asked for, without targets.
  void add_result(
      const ModelInput& input,
      const at::Tensor& hidden,
      const at::Tensor& weight,
      const at::Tensor& bias,
      const at::Tensor& targets,
      ModelOutput& output) const;

 private:
  /// The loss over the tokens of this rank, all of which may be ignored.
  at::Tensor local_loss(
      const at::Tensor& hidden,
      const at::Tensor& weight,
      const at::Tensor& bias,
      const at::Tensor& targets,
      bool is_mean) const;

  LayerContext context_;
};

} // namespace tessera::zoo
