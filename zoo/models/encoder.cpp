// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/encoder.h"

#include "tessera/sharding/lazy/numbered_init.h"
#include "tessera/zoo/layers/attention_function.h"
#include "tessera/zoo/layers/positions.h"
#include "tessera/zoo/models/layer_costs.h"
#include "tessera/zoo/models/layer_stack.h"

#include <torch/types.h>

#include <utility>

namespace tessera::zoo {

Encoder::Encoder(
    const EncoderConfig& config,
    EncoderHead head,
    const LayerContext& context,
    nlohmann::json json,
    NameTable names)
    : LayeredModel(
          context,
          std::move(json),
          std::move(names),
          layer_costs(
              config.layers,
              predicts_tokens(head) ? config.vocab * config.embedded() : 0),
          {"pooler.", "head.", "next_sentence.", "classifier."}),
      encoder_(config),
      head_kind_(head),
      pooler_activation_(activation(config.pooler_activation)) {
  make_embeddings();
  if (encoder_.position_kind == EncoderPositions::kRotaryTable) {
    const AttentionOptions attention =
        encoder_.layers.front().attention.filled();
    // Throws if they are invalid.
    rotary_frequencies({.features = attention.head_features}, 1);
    rotary_table_ = register_parameter(
        "rotary_table",
        sinusoid_table(
            encoder_.positions,
            attention.head_features,
            SinusoidLayout::kSinesThenCosines),
        /*requires_grad=*/false);
  }
  layers_ = register_module(
      "layers", make_layers(context_, config.layers, stage().local()));
  if (stage().has_last()) {
    const sharding::NumberedInit init(stage().count());
    make_end();
  }
}

bool Encoder::pools() const {
  return (head_kind_ == EncoderHead::kBase && encoder_.has_pooler) ||
         head_kind_ == EncoderHead::kPreTraining ||
         head_kind_ == EncoderHead::kNextSentence ||
         (head_kind_ == EncoderHead::kMultipleChoice &&
          !encoder_.chooses_by_last_token) ||
         head_kind_ == EncoderHead::kSequenceClassification;
}

std::optional<int64_t> Encoder::position_limit() const {
  return encoder_.position_limit();
}

std::string Encoder::cannot_drop_tokens() const {
  return has_windows() ? "windows are of neighboring tokens"
                       : cannot_drop_divided_tokens();
}

bool Encoder::has_windows() const {
  return encoder_.layers.front().reach > 0;
}

bool Encoder::is_projected() const {
  return encoder_.embedded() != encoder_.features;
}

void Encoder::make_embeddings() {
  const bool is_tied =
      stage().has_last() && predicts_tokens(head_kind_) && encoder_.tied_head;
  if (!stage().has_first() && !is_tied) {
    return;
  }
  const auto embeddings = register_module(
      "embeddings", std::make_shared<torch::nn::Module>("Embeddings"));
  tokens_ = Embedding(
      *embeddings,
      "tokens",
      context_,
      {encoder_.vocab,
       encoder_.embedded(),
       encoder_.padding_id,
       encoder_.deviation});
  if (!stage().has_first()) {
    return;
  }
  if (encoder_.position_kind == EncoderPositions::kLearned) {
    positions_ = full_table(
        *embeddings,
        "positions",
        {encoder_.positions,
         encoder_.embedded(),
         encoder_.positions_skip_padding ? encoder_.padding_id : std::nullopt,
         encoder_.deviation});
  }
  token_types_ = full_table(
      *embeddings,
      "token_types",
      {encoder_.token_types, encoder_.embedded(), {}, encoder_.deviation});
  norm_ = embeddings->register_module("norm", Norm(encoder_.norm));
  if (is_projected()) {
    project_in_ = Linear::undivided(
        *this,
        "project_in",
        context_,
        {encoder_.embedded(), encoder_.features, true, 1, encoder_.deviation});
  }
}

void Encoder::make_end() {
  const auto full = [&](const char* name, int64_t outputs) {
    return Linear::full(
        *this, name, {encoder_.features, outputs, true, 1, encoder_.deviation});
  };
  if (pools()) {
    pooler_ = full("pooler", encoder_.features);
  }
  if (predicts_tokens(head_kind_)) {
    head_ = register_module(
        "head",
        MaskedLmHead(
            context_,
            MaskedLmHeadOptions{
                encoder_.features,
                encoder_.embedded(),
                encoder_.vocab,
                encoder_.head_activation,
                encoder_.norm,
                encoder_.deviation,
                encoder_.tied_head}));
  }
  switch (head_kind_) {
    case EncoderHead::kBase:
    case EncoderHead::kMaskedLm:
      break;
    case EncoderHead::kPreTraining:
    case EncoderHead::kNextSentence:
      next_sentence_ = full("next_sentence", 2);
      break;
    case EncoderHead::kMultipleChoice:
      classifier_ = full("classifier", 1);
      break;
    default:
      classifier_ = full("classifier", encoder_.classifier.labels);
  }
}

at::Tensor Encoder::embed(const ModelInput& input) {
  const at::Tensor types = input.token_type_ids.defined()
                               ? input.token_type_ids
                               : torch::zeros_like(input.input_ids);
  at::Tensor type_embeddings =
      token_types_->forward(context_.local_tokens(types));
  if (encoder_.position_kind == EncoderPositions::kLearned) {
    type_embeddings =
        type_embeddings +
        positions_->forward(context_.local_tokens(position_ids(input)));
  }
  const at::Tensor embedded = context_.dropout(
      norm_->forward(
          tokens_.forward(context_.local_tokens(input.input_ids)) +
          context_.between(type_embeddings)),
      encoder_.embedding_dropout,
      is_training());
  return is_projected() ? project_in_.forward(embedded) : embedded;
}

RotaryTables Encoder::rotary(const ModelInput& input, at::ScalarType dtype)
    const {
  const at::Tensor rows =
      at::embedding(rotary_table_, context_.local_tokens(position_ids(input)))
          .unsqueeze(1)
          .to(dtype);
  const int64_t half = rows.size(-1) / 2;
  return {
      rows.narrow(-1, half, half),
      rows.narrow(-1, 0, half),
      RotaryLayout::kPairs};
}

LayerState Encoder::run_layers(
    const ModelInput& given,
    LayerState state,
    int begin,
    int end) {
  const ModelInput input = texts_of(given);
  if (begin == 0) {
    state.hidden = embed(input);
  }
  LayerInput layer;
  if (has_windows()) {
    layer.banded = BandedTokens::of(
        input.attention_mask, global_mask(input), input.input_ids);
  } else {
    layer.pattern =
        padding_pattern(input.attention_mask, input.input_ids.size(1));
  }
  if (encoder_.position_kind == EncoderPositions::kRotaryTable) {
    layer.rotary = rotary(input, state.hidden.scalar_type());
  }
  run_range(
      layers_, begin, end, layer, input.hidden_states, state, step_drops());
  return state;
}

} // namespace tessera::zoo
