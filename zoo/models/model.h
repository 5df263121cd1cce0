// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Model` is the base class of all models of the zoo.

#include "tessera/pipeline/stage_layers.h"
#include "tessera/zoo/formats/name_table.h"
#include "tessera/zoo/inputs/model_input.h"
#include "tessera/zoo/layers/layer_plan.h"
#include "tessera/zoo/models/recomputation.h"
#include "tessera/zoo/models/step_drops.h"

#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

class Head;

/// The value of an input per token at tokens that a model generates.
enum class NewTokens {
  kAsLast, ///< that of the prompt's last token
  kZero,
};

/// `LayerState` is what one layer passes to the next; fields that a model does
/// not use stay undefined.
struct LayerState {
  at::Tensor hidden; ///< the hidden states, laid out as between layers
  at::Tensor bias; ///< attention bias, computed by one layer for the later ones
  at::Tensor memory; ///< the encoder's output, for the decoder's layers
  at::Tensor routed; ///< packed RouterSums of the layers so far
  /// The input of each layer so far, if hidden states are requested.
  std::vector<at::Tensor> entered;

  /// All fields, to be sent to the next pipeline stage; undefined ones keep
  /// their position.
  std::vector<at::Tensor> tensors() const;
  static LayerState from_tensors(const std::vector<at::Tensor>& tensors);
};

/// The modules of a head and of the embedding whose weight it shares, by their
/// names in transformers' checkpoints.
struct TiedHead {
  std::string head;
  std::string embedding;
  /// Other modules of transformers' with that weight: an encoder-decoder has it
  /// as the embedding of each half, too.
  std::vector<std::string> others;
};

/// A model with its head. Its configuration is Hugging Face's config.json; its
/// name table maps the parameters of a transformers checkpoint to its own.
///
/// [Note: models in pieces] A model is a beginning (embeddings), layers, and an
/// end (norm, head, loss). It constructs only what the pipeline stage of its
/// LayerContext holds: the beginning belongs to the first layer, the end to the
/// last, and parameters have the same names as in the whole model. An
/// encoder-decoder numbers its encoder's layers first. Every pipeline stage is
/// given the same ModelInput, from which it derives masks and positions.
class Model : public torch::nn::Module {
 public:
  /// Runs the whole model.
  /// @throws tessera::Error on wrong shapes, ids out of range, or arguments
  ///     that the model does not take; if this object holds only one pipeline
  ///     stage.
  ModelOutput forward(const ModelInput& input);

  /// Runs the layers of one chunk of this pipeline stage.
  /// @param before the result of the preceding chunk; empty for the model's
  ///     first.
  /// @throws tessera::Error as forward().
  LayerState forward_chunk(
      int chunk,
      const ModelInput& input,
      LayerState before = {});

  /// Runs the end of the model, on the pipeline stage that holds its last
  /// layer.
  ModelOutput finish(const ModelInput& input, const LayerState& state);

  /// Sets what is recomputed in backward, by default nothing.
  void recompute(const Recomputation& recomputation);

  /// The names of the layers' modules, in the order of StageLayers::own().
  std::vector<std::string> layer_names() const;

  /// In training mode, steps leave out layers; see LayerDropOptions. Forwards
  /// must be in a RandomKeyScope, as the Trainer's are.
  /// @throws tessera::Error if the model does not support it.
  void drop_layers(const LayerDropOptions& options);
  /// The same of tokens; see TokenDropOptions.
  void drop_tokens(const TokenDropOptions& options);

  /// Whether the weight of a language model's head is the embedding's.
  virtual bool has_tied_head() const {
    return false;
  }
  /// Nothing without has_tied_head().
  std::optional<TiedHead> tied_head() const;

  /// The token that an encoder-decoder's decoder starts from; nullopt for a
  /// model that continues its input.
  virtual std::optional<int64_t> first_token() const {
    return std::nullopt;
  }

  /// How tensor-parallel ranks divide the model. A model that is made of other
  /// modules than those of zoo/layers adds entries for them.
  virtual TensorPlan tensor_plan(int ranks) const {
    return layer_plan(*this, ranks);
  }

  /// What the model is trained for, as in "zoo/heads/head.h": by default a head
  /// that takes any inputs, and is scored by the loss. Null: the model has no
  /// head, and so no loss.
  /// @return a head that may refer to this model.
  virtual std::unique_ptr<Head> head();

  /// The longest sequence; nullopt if positions are not in a table.
  virtual std::optional<int64_t> position_limit() const {
    return std::nullopt;
  }

  /// Whether ranks can divide the sequences (LayerContext::context()).
  virtual bool divides_sequences() const {
    return false;
  }

  /// Whether the model writes what belongs in blanks of a text (GLM): it then
  /// generates from `sep` and position_ids, see generate().
  virtual bool fills_blanks() const {
    return false;
  }

  /// Whether the model supports ModelInput::cache.
  virtual bool takes_cache() const {
    return false;
  }

  /// Whether what a cache has of a text holds for any text that begins with it:
  /// no token sees later ones, nor does the length change a position.
  virtual bool keeps_cache() const {
    return false;
  }

  /// Whether the model takes `document_ids` [B, S] among ModelInput::others:
  /// tokens attend to those of the same number only. Their positions are those
  /// of position_ids, which begin anew in each document if they are to.
  virtual bool takes_documents() const {
    return false;
  }

  /// Empty, or why drop_layers() and drop_tokens() are not supported.
  virtual std::string cannot_drop_layers() const {
    return "it is neither an encoder nor a decoder of texts";
  }
  virtual std::string cannot_drop_tokens() const {
    return cannot_drop_layers();
  }

  /// The inputs per token besides input_ids and attention_mask that a prompt of
  /// generate() may have, and how they continue.
  virtual std::map<std::string, NewTokens> continued_inputs() const {
    return {};
  }

  /// The layers that this object holds.
  const pipeline::StageLayers& stage() const {
    return stage_;
  }

  /// The configuration given to from_config(), with this model's
  /// `architectures`.
  const nlohmann::json& config() const {
    return config_;
  }
  /// The class that config() names.
  std::string architecture() const;
  const NameTable& names() const {
    return names_;
  }
  /// Prefixes of parameters that a checkpoint of the base model lacks; they are
  /// then newly initialized.
  const std::vector<std::string>& may_be_missing() const {
    return may_be_missing_;
  }

  /// The weights that the files of from_pretrained() lack, by the names that
  /// they would have there.
  const std::vector<std::string>& newly_initialized() const {
    return newly_initialized_;
  }
  void set_newly_initialized(std::vector<std::string> weights) {
    newly_initialized_ = std::move(weights);
  }

 protected:
  /// @param names the name table of this architecture.
  /// @param stage the layers to construct.
  Model(
      nlohmann::json config,
      NameTable names,
      const pipeline::StageLayers& stage,
      std::vector<std::string> may_be_missing = {});

  /// @throws tessera::Error on input that this model does not take.
  virtual void check(const ModelInput& input) const = 0;

  /// Runs layers [begin, end), all of which this object holds; if begin is 0,
  /// also the beginning of the model.
  virtual LayerState run_layers(
      const ModelInput& input,
      LayerState state,
      int begin,
      int end) = 0;

  /// What the current step leaves out; nothing in evaluation.
  /// @throws tessera::Error in training outside of a RandomKeyScope, if
  ///     something is to be left out.
  StepDrops step_drops() const;

  /// Runs the end of the model, after the last layer.
  virtual ModelOutput output(
      const ModelInput& input,
      const LayerState& state) = 0;

 private:
  pipeline::StageLayers stage_;
  nlohmann::json config_;
  NameTable names_;
  std::vector<std::string> may_be_missing_;
  std::vector<std::string> newly_initialized_;
  std::optional<LayerDropOptions> layer_drop_;
  std::optional<TokenDropOptions> token_drop_;
};

} // namespace tessera::zoo
