// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ModelInput` and `ModelOutput` are what the models of the zoo take and
// return.

#include "tessera/zoo/layers/key_value_cache.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::zoo {

using NamedTensors = std::map<std::string, at::Tensor>;

/// One batch: tensors named as transformers names its arguments, B sequences of
/// S tokens. A model takes some of them and rejects the others.
struct ModelInput {
  at::Tensor input_ids; ///< [B, S] int64 or int32
  /// [B, S], 0 at padding. Leave it undefined if there is no padding, which is
  /// faster.
  at::Tensor attention_mask;
  /// [B or 1, S] int64; undefined: the model's default
  at::Tensor position_ids;
  at::Tensor token_type_ids; ///< [B, S], as input_ids
  at::Tensor pixel_values; ///< [B, channels, height, width]
  at::Tensor decoder_input_ids; ///< [B, T], encoder-decoders only
  at::Tensor decoder_attention_mask; ///< [B, T]
  /// Token labels [B, S] or [B, T], -100 where there is none, or class labels
  /// [B].
  at::Tensor labels;
  /// Further model-specific arguments, by name.
  NamedTensors others;

  /// The keys and values of the tokens before these. `attention_mask`, or
  /// `decoder_attention_mask`, covers both: [B, cache->length() + S]. The cache
  /// of an encoder-decoder belongs to its decoder; `input_ids` are encoded
  /// once. Not supported with gradients or under context parallelism; see
  /// KeyValueCache.
  KeyValueCache* cache = nullptr;
  /// logits of each sequence's last token only, [B, 1, V]
  bool last_logits = false;
  /// Computes the loss only, without materializing the logits of all tokens.
  bool loss_only = false;
  bool hidden_states = false; ///< return the hidden states

  /// These tensors as `change` makes them; undefined ones stay so, and one that
  /// is in two places is changed once.
  ModelInput with_tensors(
      const std::function<at::Tensor(const at::Tensor&)>& change) const;

  /// Fills the fields from arguments by name.
  static ModelInput from_named(const NamedTensors& tensors);
  /// All defined tensors by name; the inverse of from_named().
  NamedTensors named() const;
};

/// Results under transformers' names; what a model does not compute stays
/// undefined. Every rank holds the whole tensors.
struct ModelOutput {
  at::Tensor loss; ///< scalar, with labels
  at::Tensor logits;
  at::Tensor last_hidden_state; ///< [B, S, features]
  at::Tensor pooler_output; ///< [B, features]
  /// The embeddings, then each layer's output; the last entry equals
  /// last_hidden_state. Empty unless requested.
  std::vector<at::Tensor> hidden_states;
  /// Further model-specific results, by name.
  NamedTensors others;

  /// All defined tensors by name; hidden states as "hidden_states.0", ...
  NamedTensors named() const;
};

} // namespace tessera::zoo
