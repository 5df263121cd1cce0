// SPDX-License-Identifier: Apache-2.0
#pragma once
// What all models of the zoo have in common.

#include "tessera/pipeline/stage_layers.h"
#include "tessera/zoo/layers/key_value_cache.h"
#include "tessera/zoo/models/name_table.h"

#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <optional>
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

  /// Tokens are behind those that are in it, which `attention_mask`, or
  /// `decoder_attention_mask`, covers too: [B, cache->length() + S]. An
  /// encoder-decoder's are those of its decoder: it reads `input_ids` once. Not
  /// with gradients, nor with divided sequences; see KeyValueCache.
  KeyValueCache* cache = nullptr;
  bool last_logits = false; ///< logits of each row's last token only, [B, 1, V]
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

/// What a model's layers hand on from one to the next; what a model does not
/// have stays undefined.
struct LayerState {
  at::Tensor hidden; ///< between layers
  at::Tensor bias; ///< of attention, made by one layer for those behind it
  at::Tensor memory; ///< what the encoder made, in a decoder's layers
  at::Tensor routed; ///< packed RouterSums of the layers so far
  /// What entered each layer so far, where hidden states are wanted.
  std::vector<at::Tensor> entered;

  /// All of them, to be sent; undefined ones keep their place.
  std::vector<at::Tensor> tensors() const;
  static LayerState from_tensors(const std::vector<at::Tensor>& tensors);
};

/// A model with a head. Hugging Face's config.json is its configuration, and
/// its name table says how a checkpoint of transformers holds its parameters.
///
/// [Note: models in pieces] A model is written as layers between a beginning
/// (embeddings) and an end (norm, head, loss), and has those of its
/// LayerContext's stage: the beginning lies with the first layer, the end with
/// the last one, and parameters have the names that they have in the whole. An
/// encoder-decoder counts its encoder's layers first. Every stage is given the
/// same ModelInput, from which masks and positions follow.
class Model : public torch::nn::Module {
 public:
  /// A whole model's results.
  /// @throws tessera::Error on wrong shapes, ids out of range, or arguments
  ///     that the model does not take; when it is a stage's part.
  ModelOutput forward(const ModelInput& input);

  /// The layers of one of this stage's chunks.
  /// @param before of the piece before; empty for the model's first.
  /// @throws tessera::Error as forward().
  LayerState forward_chunk(
      int chunk,
      const ModelInput& input,
      LayerState before = {});

  /// The end of the model, on the stage that has its last layer.
  ModelOutput finish(const ModelInput& input, const LayerState& state);

  /// The first `count` layers of the whole model are computed again in
  /// backward, the others not.
  void set_recomputed_layers(int64_t count);

  /// What the decoder of an encoder-decoder begins with; nothing for a model
  /// that goes on with its input.
  virtual std::optional<int64_t> first_token() const {
    return std::nullopt;
  }

  /// That ModelInput::cache is taken.
  virtual bool takes_cache() const {
    return false;
  }

  /// Which layers are here.
  const StageLayers& stage() const {
    return stage_;
  }

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
  /// @param names of this architecture, see NameTable.
  /// @param stage the layers that are to be made.
  Model(
      nlohmann::json config,
      NameTable names,
      const StageLayers& stage,
      std::vector<std::string> may_be_missing = {});

  /// @throws tessera::Error on input that this model does not take.
  virtual void check(const ModelInput& input) const = 0;

  /// Layers [begin, end), which are here; with layer 0, what comes before.
  virtual LayerState run_layers(
      const ModelInput& input,
      LayerState state,
      int begin,
      int end) = 0;

  /// What comes behind the last layer.
  virtual ModelOutput output(
      const ModelInput& input,
      const LayerState& state) = 0;

 private:
  StageLayers stage_;
  nlohmann::json config_;
  NameTable names_;
  std::vector<std::string> may_be_missing_;
};

} // namespace tessera::zoo
