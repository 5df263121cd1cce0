// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Encoder` is the bidirectional transformer encoder: BERT and its successors.

#include "tessera/zoo/heads/classification.h"
#include "tessera/zoo/layers/embedding.h"
#include "tessera/zoo/layers/transformer_layer.h"
#include "tessera/zoo/models/layered_model.h"
#include "tessera/zoo/models/masked_lm_head.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

enum class EncoderHead {
  kBase, ///< hidden states and a pooled output per sequence
  kMaskedLm,
  kPreTraining, ///< masked LM and next-sentence prediction
  kSequenceClassification,
  kTokenClassification,
  kQuestionAnswering, ///< the start and end of the answer
  kMultipleChoice, ///< which of several choices
  kNextSentence, ///< next-sentence prediction
};

inline bool predicts_tokens(EncoderHead head) {
  return head == EncoderHead::kMaskedLm || head == EncoderHead::kPreTraining;
}

enum class EncoderPositions {
  kLearned, ///< a table that is added to the embeddings
  /// A fixed table of sines and cosines, by which attention rotates neighboring
  /// features; checkpoints contain it (RoFormer).
  kRotaryTable,
};

/// The hyperparameters of an `Encoder`; a family fills them from its
/// config.json.
struct EncoderConfig {
  int64_t vocab = 0;
  int64_t features = 0;
  /// Features of the embeddings and of the masked LM head, between which and
  /// the layers there are projections if they differ; 0: features.
  int64_t embedding_features = 0;
  EncoderPositions position_kind = EncoderPositions::kLearned;
  int64_t positions = 0; ///< rows of the position table
  int64_t token_types = 0; ///< rows of the token type table
  std::optional<int64_t> padding_id; ///< see EmbeddingOptions
  /// Positions start at padding_id + 1 and skip padding, whose position is
  /// padding_id (RoBERTa).
  bool positions_skip_padding = false;
  NormOptions norm; ///< after the embeddings, and in the masked LM head
  double embedding_dropout = 0;
  double deviation = 0.02; ///< standard deviation of initial weights

  std::vector<TransformerLayerOptions> layers;

  std::string head_activation = "gelu"; ///< of the masked LM head
  bool tied_head = true; ///< the head's weight is the embedding's
  ClassifierOptions classifier;
  double classifier_dropout = 0;
  double choice_dropout = 0; ///< the same for multiple choice
  /// For layers with windows: the token that ends the question. Question tokens
  /// are global unless the input says otherwise; see Encoder.
  int64_t separator_id = 0;
  bool has_pooler = true; ///< of the base model
  std::string pooler_activation = "tanh";
  /// For sequence classification, dropout is also applied to the first token
  /// before the pooler (RoBERTa).
  bool dropout_before_pooler = false;
  /// Multiple choice classifies the last token, whether or not it is padding,
  /// without a pooler (RoFormer).
  bool chooses_by_last_token = false;

  /// See Model::position_limit().
  int64_t position_limit() const {
    return positions -
           (positions_skip_padding ? padding_id.value_or(0) + 1 : 0);
  }
  int64_t embedded() const {
    return embedding_features == 0 ? features : embedding_features;
  }
};

/// Modules: `embeddings.tokens`, `.positions`, `.token_types`, `.norm`;
/// `project_in` if embeddings have other features than layers; `layers.N`
/// (TransformerLayer); with a rotary table the parameter `rotary_table`, which
/// every pipeline stage has; `pooler` in the base model and for
/// sequence-level heads; and the head: `head` (MaskedLmHead), `next_sentence`,
/// or `classifier`, which also serves question answering. If the head is tied,
/// the last pipeline stage has `embeddings.tokens` too.
///
/// Takes input_ids, attention_mask, position_ids (with learned positions),
/// token_type_ids and labels: tokens [B, S] (-100 where nothing is predicted);
/// classes [B] or [B, S]; `start_positions` and `end_positions` [B], which are
/// ignored if outside of the sequence; for pre-training also
/// `next_sentence_label` [B]. Question answering returns `start_logits` and
/// `end_logits` [B, S]; pre-training returns `prediction_logits` and
/// `seq_relationship_logits`. Multiple choice takes token inputs of shape [B,
/// choices, S] and labels [B], and returns logits [B, choices].
///
/// With windowed layers it also takes `global_attention_mask` [B, S], 1 for
/// tokens that attend to all tokens and are attended to by all, or an
/// attention_mask that is 2 there. By default the global tokens are the first
/// one for sequence classification, those before the first of three separators
/// for question answering, and those after the second one for multiple choice.
class Encoder : public LayeredModel {
 public:
  /// @param json the config.json, which the model keeps.
  Encoder(
      const EncoderConfig& config,
      EncoderHead head,
      const LayerContext& context,
      nlohmann::json json,
      NameTable names);

  const EncoderConfig& encoder_config() const {
    return encoder_;
  }

  std::unique_ptr<Head> head() override;
  bool has_tied_head() const override {
    return predicts_tokens(head_kind_) && encoder_.tied_head;
  }
  std::optional<int64_t> position_limit() const override;
  std::string cannot_drop_layers() const override {
    return "";
  }
  /// Not with windows, nor under context parallelism.
  std::string cannot_drop_tokens() const override;
  /// Not with windows.
  bool divides_sequences() const override {
    return !has_windows();
  }

 protected:
  void check(const ModelInput& input) const override;
  LayerState run_layers(
      const ModelInput& input,
      LayerState state,
      int begin,
      int end) override;
  ModelOutput output(const ModelInput& input, const LayerState& state) override;

 private:
  bool pools() const;
  bool has_windows() const;
  bool is_projected() const;
  void make_embeddings();
  void make_end();
  /// Multiple choice: flattens the choices to one row each. Else returns its
  /// argument.
  ModelInput texts_of(const ModelInput& choices) const;
  at::Tensor global_mask(const ModelInput& input) const;
  at::Tensor embed(const ModelInput& input);
  at::Tensor position_ids(const ModelInput& input) const;
  /// The rows of the rotary table for this rank's tokens.
  RotaryTables rotary(const ModelInput& input, at::ScalarType dtype) const;
  at::Tensor dropped(const at::Tensor& x) const;
  at::Tensor pooled(const at::Tensor& hidden);
  /// @param hidden laid out as between layers.
  /// @return the loss, or undefined without labels.
  at::Tensor predict_tokens(
      const ModelInput& input,
      const at::Tensor& hidden,
      at::Tensor& logits);
  void classify(
      const ModelInput& input,
      const at::Tensor& hidden,
      ModelOutput& output);
  void follow(
      const ModelInput& input,
      const at::Tensor& hidden,
      ModelOutput& output);
  void pre_train(
      const ModelInput& input,
      const at::Tensor& hidden,
      ModelOutput& output);

  EncoderConfig encoder_;
  EncoderHead head_kind_;
  Embedding tokens_;
  torch::nn::Embedding positions_{nullptr}, token_types_{nullptr};
  Norm norm_{nullptr};
  Linear project_in_;
  at::Tensor rotary_table_; ///< undefined with other positions
  TransformerLayers layers_{nullptr};
  MaskedLmHead head_{nullptr};
  Linear pooler_, classifier_, next_sentence_;
  Activation pooler_activation_;
};

} // namespace tessera::zoo
