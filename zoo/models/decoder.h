// SPDX-License-Identifier: Apache-2.0
#pragma once
// Models that read from left to right: GPT-2 and what came after.

#include "tessera/zoo/layers/embedding.h"
#include "tessera/zoo/layers/transformer_layer.h"
#include "tessera/zoo/models/classification.h"
#include "tessera/zoo/models/layer_stack.h"
#include "tessera/zoo/models/model.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

enum class DecoderHead {
  kBase,
  kCausalLm,
  kSequenceClassification, ///< by the last token
  kTokenClassification,
  kQuestionAnswering, ///< where the answer begins and where it ends
};

/// What makes a decoder; a family fills it from its config.json.
struct DecoderConfig {
  int64_t vocab = 0;
  int64_t features = 0;
  int64_t embedding_features = 0; ///< 0: as features; else projected
  std::optional<int64_t> padding_id; ///< of the embedding, see EmbeddingOptions
  /// Token types are embedded by the same table as tokens.
  bool token_types = false;
  int64_t learned_positions = 0; ///< rows of their table; 0: none
  int64_t position_offset = 0; ///< the row of position 0
  bool positions_skip_padding = false;
  /// Rows of a second table, of positions within a blank that is filled in; 0:
  /// none. position_ids are then [B, 2, S]: those of both tables.
  int64_t block_positions = 0;
  /// Tokens before `sep` [B] are seen by all.
  bool prefix = false;
  std::optional<RotaryOptions> rotary;
  double embedding_dropout = 0;
  double deviation = 0.02; ///< of fresh weights

  std::vector<TransformerLayerOptions> layers;
  int64_t window = 0; ///< of layers that are local
  std::optional<NormOptions> final_norm;

  /// A language model's losses that keep routers even are computed
  /// (transformers' output_router_logits), with labels added to its own.
  bool router_losses = false;
  double router_balance = 0.001; ///< weight of load_balancing_loss()
  double router_z = 0; ///< weight of router_z_loss()

  bool tied_head = false; ///< its weight is the embedding's
  bool head_bias = false;
  /// Each place predicts its own label, in place of the next one's.
  bool labels_in_place = false;
  std::optional<int64_t> padding_token; ///< of inputs, for classification
  ClassifierOptions classifier;
  double classifier_dropout = 0; ///< of tokens that are classified
  bool token_bias = true; ///< the classifier of tokens has one
};

/// With LayerContext::context() a rank works on its own tokens of the batch:
/// inputs and results are whole, the loss is the mean over all tokens that have
/// a label, and gradients are to be averaged; see [Note: losses over divided
/// sequences].
///
/// Modules: `embeddings.tokens`, `.positions`, `.block_positions`,
/// `project_in`, `layers.N` (TransformerLayer), `final_norm`, `project_out`,
/// and the head: `head`, or nothing where it is tied, or `score`. The last
/// stage of a pipeline has `embeddings.tokens` too where the head is tied to
/// it.
///
/// Takes input_ids, attention_mask, position_ids, token_type_ids where the
/// model has them, `sep` where it has a prefix, and labels: tokens [B, S], of
/// which each predicts the next one, or classes [B] or [B, S]; for questions
/// see add_answers().
class Decoder : public Model {
 public:
  /// @param json config.json, kept.
  Decoder(
      const DecoderConfig& config,
      DecoderHead head,
      const LayerContext& context,
      nlohmann::json json,
      NameTable names);

  const DecoderConfig& decoder_config() const {
    return decoder_;
  }
  DecoderHead head() const {
    return head_kind_;
  }

  /// Not with divided sequences, nor prefixes that are seen by all.
  bool takes_cache() const override;

 protected:
  void check(const ModelInput& input) const override;
  LayerState run_layers(
      const ModelInput& input,
      LayerState state,
      int begin,
      int end) override;
  ModelOutput output(const ModelInput& input, const LayerState& state) override;

 private:
  bool is_projected() const;
  void make_embeddings();
  void make_end();
  at::Tensor embed(const ModelInput& input, const at::Tensor& positions);
  at::Tensor position_ids(const ModelInput& input) const;
  LayerInput layer_input(
      const ModelInput& input,
      const at::Tensor& positions,
      at::ScalarType dtype) const;
  void add_language_head(
      const ModelInput& input,
      const at::Tensor& hidden,
      ModelOutput& output);
  /// Adds what the routers of the layers [begin, end) decided to state.routed.
  void add_routed(
      const ModelInput& input,
      int begin,
      int end,
      LayerState& state);
  /// Over all layers' tokens, and those of all ranks whose gradients are
  /// averaged.
  void add_router_losses(const LayerState& state, ModelOutput& output);
  void add_classifier(const ModelInput& input, ModelOutput& output);
  void add_token_classifier(const ModelInput& input, ModelOutput& output);

  DecoderConfig decoder_;
  DecoderHead head_kind_;
  LayerContext context_;
  Embedding tokens_;
  torch::nn::Embedding positions_{nullptr}, block_positions_{nullptr};
  Linear project_in_, project_out_;
  TransformerLayers layers_{nullptr};
  Norm final_norm_{nullptr};
  Linear head_, score_;
};

} // namespace tessera::zoo
