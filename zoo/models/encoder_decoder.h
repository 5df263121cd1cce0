// SPDX-License-Identifier: Apache-2.0
#pragma once
// Models that read one text and write another: T5 and what came after.

#include "tessera/zoo/layers/embedding.h"
#include "tessera/zoo/layers/linear.h"
#include "tessera/zoo/models/model.h"
#include "tessera/zoo/models/relative_stack.h"

#include <cstdint>

namespace tessera::zoo {

enum class EncoderDecoderHead {
  kBase, ///< what the decoder makes
  kLanguageModel,
  kEncoderOnly, ///< there is no decoder
};

/// What makes an encoder-decoder; a family fills it from its config.json.
struct EncoderDecoderConfig {
  int64_t vocab = 0;
  int64_t features = 0;
  double dropout = 0; ///< of embeddings
  double embedding_deviation = 1; ///< of fresh weights
  double head_deviation = 1; ///< of a head's that is not tied

  RelativeStackOptions encoder;
  RelativeStackOptions decoder; ///< its layers have cross-attention

  bool tied_head = false; ///< its weight is the embedding's
  double head_scale = 1; ///< of what is multiplied with it
  int64_t start_token = 0; ///< what the decoder begins with
  int64_t padding_token = 0;
};

/// Modules: `embeddings.tokens` for both texts, `encoder` and `decoder`
/// (RelativeStack), and `head`, or nothing where it is tied. In a pipeline the
/// embedding is where the encoder begins, where the decoder begins, and where
/// the tied head is.
///
/// Takes input_ids [B, S], attention_mask, decoder_input_ids [B, T],
/// decoder_attention_mask and labels [B, T], tokens, -100 where nothing is
/// predicted; without decoder_input_ids the decoder is given the labels, moved
/// by one. Results are those of the decoder, beside
/// `encoder_last_hidden_state`, `encoder_hidden_states.N` and
/// `decoder_hidden_states.N`.
class EncoderDecoder : public Model {
 public:
  /// @param json config.json, kept.
  EncoderDecoder(
      const EncoderDecoderConfig& config,
      EncoderDecoderHead head,
      const LayerContext& context,
      nlohmann::json json,
      NameTable names);

  std::optional<int64_t> first_token() const override {
    return has_decoder() ? std::optional(config_.start_token) : std::nullopt;
  }

  /// Not with divided sequences, nor without a decoder.
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
  bool has_decoder() const {
    return head_kind_ != EncoderDecoderHead::kEncoderOnly;
  }
  void make_embedding();
  at::Tensor decoder_ids(const ModelInput& input) const;
  void start(
      RelativeStack& half,
      const at::Tensor& ids,
      int64_t past,
      LayerState& state);
  void encode(const ModelInput& input, LayerState& state, int begin, int end);
  void decode(const ModelInput& input, LayerState& state, int begin, int end);
  void add_language_head(
      const ModelInput& input,
      const at::Tensor& hidden,
      ModelOutput& output);

  EncoderDecoderConfig config_;
  EncoderDecoderHead head_kind_;
  LayerContext context_;
  int encoder_layers_;
  Embedding tokens_;
  RelativeStack encoder_{nullptr}, decoder_{nullptr};
  Linear head_;
};

} // namespace tessera::zoo
