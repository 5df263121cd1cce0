// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Decoder` is the decoder-only (causal) transformer: GPT-2 and its successors.

#include "tessera/zoo/heads/classification.h"
#include "tessera/zoo/layers/embedding.h"
#include "tessera/zoo/layers/transformer_layer.h"
#include "tessera/zoo/models/layer_stack.h"
#include "tessera/zoo/models/layered_model.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

enum class DecoderHead {
  kBase,
  kCausalLm,
  kSequenceClassification, ///< from the last token
  kTokenClassification,
  kQuestionAnswering, ///< the start and end of the answer
};

/// The hyperparameters of a `Decoder`; a family fills them from its
/// config.json.
struct DecoderConfig {
  int64_t vocab = 0;
  int64_t features = 0;
  /// embedding size; 0: features; else projected
  int64_t embedding_features = 0;
  std::optional<int64_t> padding_id; ///< see EmbeddingOptions
  /// Token types are embedded by the same table as tokens.
  bool token_types = false;
  int64_t learned_positions = 0; ///< rows of the position table; 0: none
  int64_t position_offset = 0; ///< row of position 0
  bool positions_skip_padding = false;
  /// Rows of a second table, for positions within a blank that is filled in; 0:
  /// none. position_ids are then [B, 2, S], one row for each table.
  int64_t block_positions = 0;
  /// Every token attends to the tokens before `sep` [B] (prefix LM).
  bool prefix = false;
  std::optional<RotaryOptions> rotary;
  std::optional<RotaryOptions> local_rotary; ///< of layers with local attention
  /// ALiBi (arXiv:2108.12409): added to a query's scores is a head's slope
  /// times the distance to the key, negative. One per head; empty: none.
  std::vector<double> distance_slopes;
  double embedding_scale = 1; ///< rounded to the type of the embeddings
  double logit_scale = 1;
  double embedding_dropout = 0;
  /// LayerDrop probability. LayerDrop is not implemented: a model with more
  /// than 0 does not train.
  double layer_drop = 0;
  double deviation = 0.02; ///< standard deviation of initial weights

  std::vector<TransformerLayerOptions> layers;
  int64_t window = 0; ///< of layers with local attention
  std::optional<NormOptions> final_norm;

  /// Adds the router losses that balance experts to the language model's loss
  /// when labels are given (transformers' output_router_logits).
  bool router_losses = false;
  double router_balance = 0.001; ///< weight of load_balancing_loss()
  double router_z = 0; ///< weight of router_z_loss()

  bool tied_head = false; ///< the head's weight is the embedding's
  bool head_bias = false;
  /// Each token predicts its own label instead of the next token's.
  bool labels_in_place = false;
  std::optional<int64_t> padding_token; ///< of the inputs, for classification
  ClassifierOptions classifier;
  double classifier_dropout = 0; ///< for token classification
  bool token_bias = true; ///< the token classifier has a bias

  int64_t embedded() const {
    return embedding_features == 0 ? features : embedding_features;
  }
  /// See Model::position_limit().
  std::optional<int64_t> position_limit() const {
    return learned_positions == 0
               ? std::nullopt
               : std::optional(learned_positions - position_offset);
  }
};

/// Under context parallelism (LayerContext::context()) a rank computes its own
/// tokens of the batch: inputs and results are whole, the loss is the mean over
/// all tokens that have a label, and gradients must be averaged; see
/// [Note: losses over divided sequences].
///
/// Modules: `embeddings.tokens`, `.positions`, `.block_positions`,
/// `project_in`, `layers.N` (TransformerLayer), `final_norm`, `project_out`,
/// and the head: `head` (absent if tied) or `score`. If the head is tied, the
/// last pipeline stage has `embeddings.tokens` too.
///
/// Takes input_ids, attention_mask, position_ids, token_type_ids if the model
/// has them, `sep` if it has a prefix, document_ids if takes_documents(), and
/// labels: tokens [B, S], where each
/// token predicts the next one's, or classes [B] or [B, S]. For question
/// answering see add_answers().
class Decoder : public LayeredModel {
 public:
  /// @param json the config.json, which the model keeps.
  Decoder(
      const DecoderConfig& config,
      DecoderHead head,
      const LayerContext& context,
      nlohmann::json json,
      NameTable names);

  const DecoderConfig& decoder_config() const {
    return decoder_;
  }
  DecoderHead head_kind() const {
    return head_kind_;
  }

  std::unique_ptr<Head> head() override;
  bool has_tied_head() const override {
    return head_kind_ == DecoderHead::kCausalLm && decoder_.tied_head;
  }
  std::optional<int64_t> position_limit() const override;
  bool divides_sequences() const override {
    return true;
  }
  bool fills_blanks() const override {
    return decoder_.prefix && decoder_.block_positions > 0;
  }
  /// False under context parallelism. Tokens that follow cached ones attend to
  /// all of them: a prefix belongs to the first tokens.
  bool takes_cache() const override {
    return context_.has_all_tokens();
  }
  /// Not with a prefix, nor with rotary positions that depend on the length.
  bool keeps_cache() const override;
  /// Not with router losses, which are of all layers.
  std::string cannot_drop_layers() const override;
  /// Nor under context parallelism.
  std::string cannot_drop_tokens() const override;
  /// Not with a prefix, with positions within blanks, nor under ring attention.
  bool takes_documents() const override;

 protected:
  void check(const ModelInput& input) const override;
  LayerState run_layers(
      const ModelInput& input,
      LayerState state,
      int begin,
      int end) override;
  ModelOutput output(const ModelInput& input, const LayerState& state) override;

 private:
  bool is_projected() const {
    return decoder_.embedded() != decoder_.features;
  }
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
  /// Adds the routing decisions of the layers [begin, end) to state.routed.
  void add_routed(
      const ModelInput& input,
      int begin,
      int end,
      LayerState& state);
  /// Adds the router losses over the tokens of all layers and of all ranks
  /// whose gradients are averaged.
  void add_router_losses(const LayerState& state, ModelOutput& output);
  void add_classifier(const ModelInput& input, ModelOutput& output);
  void add_token_classifier(const ModelInput& input, ModelOutput& output);

  DecoderConfig decoder_;
  DecoderHead head_kind_;
  Embedding tokens_;
  torch::nn::Embedding positions_{nullptr}, block_positions_{nullptr};
  Linear project_in_, project_out_;
  TransformerLayers layers_{nullptr};
  Norm final_norm_{nullptr};
  Linear head_, score_;
};

} // namespace tessera::zoo
