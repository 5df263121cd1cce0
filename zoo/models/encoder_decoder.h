// SPDX-License-Identifier: Apache-2.0
#pragma once
// `EncoderDecoder` is the sequence-to-sequence transformer: T5 and its
// successors.

#include "tessera/zoo/heads/classification.h"
#include "tessera/zoo/layers/embedding.h"
#include "tessera/zoo/layers/linear.h"
#include "tessera/zoo/models/layered_model.h"
#include "tessera/zoo/models/relative_stack.h"

#include <cstdint>

namespace tessera::zoo {

enum class EncoderDecoderHead {
  kBase, ///< the decoder's hidden states
  kLanguageModel,
  kEncoderOnly, ///< no decoder
  kSequenceClassification, ///< from the decoder's last end token
  kTokenClassification, ///< of the encoder's tokens; no decoder
  kQuestionAnswering, ///< the start and end of the answer
};

inline bool has_decoder(EncoderDecoderHead head) {
  return head != EncoderDecoderHead::kEncoderOnly &&
         head != EncoderDecoderHead::kTokenClassification;
}

/// The hyperparameters of an `EncoderDecoder`; a family fills them from its
/// config.json.
struct EncoderDecoderConfig {
  int64_t vocab = 0;
  int64_t features = 0;
  double dropout = 0; ///< of embeddings
  double embedding_deviation = 1; ///< standard deviation of initial weights
  double head_deviation = 1; ///< the same, of an untied head
  double class_deviation = 0.02; ///< the same, of a classifier

  RelativeStackOptions encoder;
  RelativeStackOptions decoder; ///< its layers have cross-attention

  bool tied_head = false; ///< the head's weight is the embedding's
  double head_scale = 1; ///< factor on the input of the head
  int64_t start_token = 0; ///< first token of the decoder
  int64_t padding_token = 0;
  int64_t end_token = 1; ///< end of a sequence, for classification
  ClassifierOptions classifier;
  double classifier_dropout = 0;
};

/// Modules: `embeddings.tokens`, shared by encoder and decoder; `encoder` and
/// `decoder` (RelativeStack); and `head` (absent if tied) or `classifier`,
/// preceded by `pooler` for sequence classification. In a pipeline the
/// embedding is held where the encoder begins, where the decoder begins, and
/// where the tied head is.
///
/// Takes input_ids [B, S], attention_mask, decoder_input_ids [B, T],
/// decoder_attention_mask and labels: tokens [B, T], -100 where nothing is
/// predicted. Without decoder_input_ids the decoder reads the labels shifted
/// right by one; for sequence classification and question answering it reads
/// the input. Labels are then classes [B], or [B, S] for tokens, or those of
/// add_answers(). Returns the decoder's results and
/// `encoder_last_hidden_state`, `encoder_hidden_states.N` and
/// `decoder_hidden_states.N`.
class EncoderDecoder : public LayeredModel {
 public:
  /// @param json the config.json, which the model keeps.
  EncoderDecoder(
      const EncoderDecoderConfig& config,
      EncoderDecoderHead head,
      const LayerContext& context,
      nlohmann::json json,
      NameTable names);

  std::optional<int64_t> first_token() const override {
    return has_decoder() ? std::optional(config_.start_token) : std::nullopt;
  }

  std::unique_ptr<Head> head() override;
  bool has_tied_head() const override {
    return head_kind_ == EncoderDecoderHead::kLanguageModel &&
           config_.tied_head;
  }
  bool divides_sequences() const override {
    return true;
  }

  /// ModelInput::decoder_input_ids; where they are not given, those of the
  /// labels, each a token later, or of a classifier's input.
  /// @throws tessera::Error without either.
  at::Tensor decoder_ids(const ModelInput& input) const;

  /// False under context parallelism and without a decoder.
  bool takes_cache() const override {
    return has_decoder() && context_.has_all_tokens();
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
  bool has_decoder() const {
    return zoo::has_decoder(head_kind_);
  }
  void make_embedding();
  void make_end();
  void start(
      RelativeStack& half,
      const at::Tensor& ids,
      int64_t past,
      LayerState& state);
  void encode(const ModelInput& input, LayerState& state, int begin, int end);
  void decode(const ModelInput& input, LayerState& state, int begin, int end);
  /// @param last the final hidden states, whole on every rank.
  void classify(
      const ModelInput& input,
      const at::Tensor& last,
      ModelOutput& output);
  void add_language_head(
      const ModelInput& input,
      const at::Tensor& hidden,
      ModelOutput& output);

  EncoderDecoderConfig config_;
  EncoderDecoderHead head_kind_;
  int encoder_layers_;
  Embedding tokens_;
  RelativeStack encoder_{nullptr}, decoder_{nullptr};
  Linear head_, pooler_, classifier_;
};

} // namespace tessera::zoo
