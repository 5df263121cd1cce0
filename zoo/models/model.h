// SPDX-License-Identifier: Apache-2.0
#pragma once
// What all models of the zoo have in common.

#include "tessera/zoo/models/name_table.h"

#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <vector>

namespace tessera::zoo {

using NamedTensors = std::map<std::string, at::Tensor>;

/// One batch: tensors under the names of transformers' arguments, B rows of S
/// tokens. A model takes some of them and refuses the others.
struct ModelInput {
  at::Tensor input_ids; ///< [B, S] int64 or int32
  /// [B, S], 0 where a token is padding; undefined when there is no padding,
  /// which is faster.
  at::Tensor attention_mask;
  at::Tensor position_ids; ///< [B or 1, S] int64; undefined: as the model does
  at::Tensor token_type_ids; ///< [B, S] as input_ids
  at::Tensor pixel_values; ///< [B, channels, height, width]
  at::Tensor decoder_input_ids; ///< [B, T]: of encoder-decoders
  at::Tensor decoder_attention_mask; ///< [B, T]
  /// [B, S] or [B, T] of tokens, -100 for none; or [B] of classes.
  at::Tensor labels;
  /// More of a model's own arguments, by name.
  NamedTensors others;

  /// Only the loss is computed, without logits for all tokens at a time.
  bool loss_only = false;
  bool hidden_states = false; ///< wanted as results

  /// Fills the fields from arguments by name.
  static ModelInput from_named(const NamedTensors& tensors);
  /// All that are defined.
  NamedTensors named() const;
};

/// Results under transformers' names; what a model does not compute stays
/// undefined. Tensors are whole on every rank.
struct ModelOutput {
  at::Tensor loss; ///< scalar, with labels
  at::Tensor logits;
  at::Tensor last_hidden_state; ///< [B, S, features]
  at::Tensor pooler_output; ///< [B, features]
  /// The embeddings, then each layer's output, the last one as
  /// last_hidden_state; when asked for.
  std::vector<at::Tensor> hidden_states;
  /// More of a model's own results, by name.
  NamedTensors others;

  /// All that is defined; hidden states as "hidden_states.0", ...
  NamedTensors named() const;
};

/// A model with a head. Hugging Face's config.json is its configuration, and
/// its name table says how a checkpoint of transformers holds its parameters.
class Model : public torch::nn::Module {
 public:
  /// @throws tessera::Error on wrong shapes, ids out of range, or arguments
  ///     that the model does not take.
  virtual ModelOutput forward(const ModelInput& input) = 0;

  /// As given to from_config(), with this model's `architectures`.
  const nlohmann::json& config() const {
    return config_;
  }
  const NameTable& names() const {
    return names_;
  }
  /// Prefixes of parameters that a checkpoint of the base model lacks; they
  /// then start fresh.
  const std::vector<std::string>& may_be_missing() const {
    return may_be_missing_;
  }

 protected:
  /// `names` of this architecture, see NameTable.
  Model(
      nlohmann::json config,
      NameTable names,
      std::vector<std::string> may_be_missing = {});

 private:
  nlohmann::json config_;
  NameTable names_;
  std::vector<std::string> may_be_missing_;
};

} // namespace tessera::zoo
