// SPDX-License-Identifier: Apache-2.0
#pragma once
// Models that see a whole text at once: BERT and what came after.

#include "tessera/zoo/layers/embedding.h"
#include "tessera/zoo/layers/transformer_layer.h"
#include "tessera/zoo/models/classification.h"
#include "tessera/zoo/models/masked_lm_head.h"
#include "tessera/zoo/models/model.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

enum class EncoderHead {
  kBase, ///< hidden states, and a pooled one for each text
  kMaskedLm,
  kPreTraining, ///< masked LM, and whether one text follows the other
  kSequenceClassification,
  kTokenClassification,
  kQuestionAnswering, ///< where the answer begins and where it ends
  kMultipleChoice, ///< which of several texts it is
  kNextSentence, ///< whether one text follows the other
};

/// What makes an encoder; a family fills it from its config.json.
struct EncoderConfig {
  int64_t vocab = 0;
  int64_t features = 0;
  int64_t positions = 0; ///< rows of their table
  int64_t token_types = 0; ///< rows of their table
  std::optional<int64_t> padding_id; ///< of the embedding, see EmbeddingOptions
  /// Positions count from padding_id + 1 on and skip padding, which is at
  /// padding_id (RoBERTa).
  bool positions_skip_padding = false;
  NormOptions norm; ///< behind the embeddings, and in the masked LM's head
  double embedding_dropout = 0;
  double deviation = 0.02; ///< of fresh weights

  std::vector<TransformerLayerOptions> layers;

  std::string head_activation = "gelu"; ///< of the masked LM
  bool tied_head = true; ///< its weight is the embedding's
  ClassifierOptions classifier;
  double classifier_dropout = 0;
  double choice_dropout = 0; ///< the same, for multiple choice
  /// Where layers have windows: behind which questions end, which are global
  /// tokens unless the input says which are; see Encoder.
  int64_t separator_id = 0;
  bool has_pooler = true; ///< of a base model
  /// The first token's features are dropped before they are pooled too, for
  /// classification of sequences (RoBERTa).
  bool dropout_before_pooler = false;
};

/// Modules: `embeddings.tokens`, `.positions`, `.token_types`, `.norm`;
/// `layers.N` (TransformerLayer); `pooler` of a base model and of heads for
/// whole texts; and the head: `head` (MaskedLmHead), `next_sentence`, or
/// `classifier`, which is also what finds answers. The last stage of a pipeline
/// has `embeddings.tokens` too where the head is tied to it.
///
/// Takes input_ids, attention_mask, position_ids, token_type_ids, and of
/// labels: tokens [B, S] (-100 where nothing is predicted); classes [B] or
/// [B, S]; `start_positions` and `end_positions` [B], of which those outside of
/// the text count for nothing; pre-training also `next_sentence_label` [B].
/// Results of questions are `start_logits` and `end_logits` [B, S]; of
/// pre-training `prediction_logits` and `seq_relationship_logits`. Multiple
/// choice takes [B, choices, S] of everything about tokens, labels [B], and
/// gives logits [B, choices].
///
/// Where layers have windows it also takes `global_attention_mask` [B, S], 1
/// for tokens that see all and are seen by all; or an attention_mask that is 2
/// there. Without one the first token is global for classification of texts,
/// those before the first of three separators for questions, and those behind
/// it for multiple choice.
class Encoder : public Model {
 public:
  /// @param json config.json, kept.
  Encoder(
      const EncoderConfig& config,
      EncoderHead head,
      const LayerContext& context,
      nlohmann::json json,
      NameTable names);

  const EncoderConfig& encoder_config() const {
    return encoder_;
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
  bool predicts_tokens() const;
  bool pools() const;
  bool has_windows() const;
  void make_embeddings();
  void make_end();
  /// Of multiple choice, a row for each text; else as it is.
  ModelInput texts_of(const ModelInput& choices) const;
  at::Tensor global_mask(const ModelInput& input) const;
  at::Tensor embed(const ModelInput& input);
  at::Tensor position_ids(const ModelInput& input) const;
  at::Tensor dropped(const at::Tensor& x) const;
  at::Tensor pooled(const at::Tensor& hidden);
  /// @param hidden between layers.
  /// @return the loss, if there are labels.
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
  LayerContext context_;
  Embedding tokens_;
  torch::nn::Embedding positions_{nullptr}, token_types_{nullptr};
  Norm norm_{nullptr};
  TransformerLayers layers_{nullptr};
  MaskedLmHead head_{nullptr};
  Linear pooler_, classifier_, next_sentence_;
};

} // namespace tessera::zoo
