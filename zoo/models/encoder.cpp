// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/encoder.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/numbered_init.h"
#include "tessera/zoo/layers/masks.h"
#include "tessera/zoo/models/input_checks.h"
#include "tessera/zoo/models/layer_costs.h"
#include "tessera/zoo/models/layer_stack.h"

#include <torch/torch.h>

#include <string_view>
#include <utility>

namespace tessera::zoo {

namespace {

torch::nn::Embedding small_table(
    torch::nn::Module& owner,
    const char* name,
    const EmbeddingOptions& options) {
  auto table = owner.register_module(
      name,
      torch::nn::Embedding(
          torch::nn::EmbeddingOptions(options.rows, options.features)
              .padding_idx(options.padding_id)));
  const torch::NoGradGuard no_grad;
  table->weight.normal_(0, options.deviation);
  if (options.padding_id) {
    table->weight[*options.padding_id].zero_();
  }
  return table;
}

std::vector<LayerCost> costs_of(const EncoderConfig& config, EncoderHead head) {
  const bool predicts_tokens =
      head == EncoderHead::kMaskedLm || head == EncoderHead::kPreTraining;
  return layer_costs(
      config.layers, predicts_tokens ? config.vocab * config.features : 0);
}

} // namespace

Encoder::Encoder(
    const EncoderConfig& config,
    EncoderHead head,
    const LayerContext& context,
    nlohmann::json json,
    NameTable names)
    : Model(
          std::move(json),
          std::move(names),
          StageLayers(context.place(), costs_of(config, head)),
          {"pooler.", "head.", "next_sentence.", "classifier."}),
      encoder_(config),
      head_kind_(head),
      context_(context) {
  make_embeddings();
  layers_ = register_module(
      "layers", make_layers(context_, config.layers, stage().own()));
  if (stage().has_last()) {
    const NumberedInit init(stage().count());
    make_end();
  }
}

bool Encoder::predicts_tokens() const {
  return head_kind_ == EncoderHead::kMaskedLm ||
         head_kind_ == EncoderHead::kPreTraining;
}

bool Encoder::pools() const {
  return head_kind_ == EncoderHead::kBase ||
         head_kind_ == EncoderHead::kPreTraining ||
         head_kind_ == EncoderHead::kSequenceClassification;
}

void Encoder::make_embeddings() {
  const bool is_tied = stage().has_last() && predicts_tokens();
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
       encoder_.features,
       encoder_.padding_id,
       encoder_.deviation});
  if (!stage().has_first()) {
    return;
  }
  positions_ = small_table(
      *embeddings,
      "positions",
      {encoder_.positions,
       encoder_.features,
       encoder_.positions_skip_padding ? encoder_.padding_id : std::nullopt,
       encoder_.deviation});
  token_types_ = small_table(
      *embeddings,
      "token_types",
      {encoder_.token_types, encoder_.features, {}, encoder_.deviation});
  norm_ = embeddings->register_module("norm", Norm(context_, encoder_.norm));
}

void Encoder::make_end() {
  // Every rank computes these from whole hidden states.
  const auto whole = [&](const char* name, int64_t outputs) {
    return Linear::column(
        *this,
        name,
        LayerContext(),
        {encoder_.features, outputs, true, 1, encoder_.deviation});
  };
  if (pools()) {
    pooler_ = whole("pooler", encoder_.features);
  }
  if (predicts_tokens()) {
    head_ = register_module(
        "head",
        MaskedLmHead(
            context_,
            MaskedLmHeadOptions{
                encoder_.features,
                encoder_.vocab,
                encoder_.head_activation,
                encoder_.norm,
                encoder_.deviation}));
    if (head_kind_ == EncoderHead::kPreTraining) {
      next_sentence_ = whole("next_sentence", 2);
    }
  } else if (head_kind_ != EncoderHead::kBase) {
    classifier_ = whole("classifier", encoder_.classifier.labels);
  }
}

void Encoder::check(const ModelInput& input) const {
  check_ids("input_ids", input.input_ids, encoder_.vocab);
  check_same_shape("attention_mask", input.attention_mask, input.input_ids);
  if (input.token_type_ids.defined()) {
    check_ids("token_type_ids", input.token_type_ids, encoder_.token_types);
    check_same_shape("token_type_ids", input.token_type_ids, input.input_ids);
  }
  std::vector<std::string_view> taken = {
      "input_ids", "attention_mask", "position_ids", "token_type_ids"};
  if (head_kind_ == EncoderHead::kQuestionAnswering) {
    taken.insert(taken.end(), {"start_positions", "end_positions"});
  } else if (head_kind_ != EncoderHead::kBase) {
    taken.emplace_back("labels");
  }
  if (head_kind_ == EncoderHead::kPreTraining) {
    taken.emplace_back("next_sentence_label");
  }
  check_not_taken(input, taken);
  const int64_t length = input.input_ids.size(1);
  const int64_t most =
      encoder_.positions - (encoder_.positions_skip_padding
                                ? encoder_.padding_id.value_or(0) + 1
                                : 0);
  TESSERA_CHECK(
      length <= most,
      "sequences of ",
      length,
      " tokens; the model has positions for ",
      most,
      "; cut the texts");
  if (input.position_ids.defined()) {
    check_ids("position_ids", input.position_ids, encoder_.positions);
  }
}

at::Tensor Encoder::position_ids(const ModelInput& input) const {
  if (input.position_ids.defined()) {
    return input.position_ids;
  }
  if (encoder_.positions_skip_padding) {
    const int64_t padding = encoder_.padding_id.value_or(0);
    return positions_without_padding(input.input_ids.ne(padding)) + padding + 1;
  }
  return torch::arange(
             input.input_ids.size(1),
             input.input_ids.options().dtype(at::kLong))
      .unsqueeze(0);
}

at::Tensor Encoder::embed(const ModelInput& input) {
  const at::Tensor types = input.token_type_ids.defined()
                               ? input.token_type_ids
                               : torch::zeros_like(input.input_ids);
  const at::Tensor places =
      token_types_->forward(context_.own_tokens(types)) +
      positions_->forward(context_.own_tokens(position_ids(input)));
  return context_.dropout(
      norm_->forward(
          tokens_.forward(context_.own_tokens(input.input_ids)) +
          context_.between(places)),
      encoder_.embedding_dropout,
      is_training());
}

LayerState Encoder::run_layers(
    const ModelInput& input,
    LayerState state,
    int begin,
    int end) {
  if (begin == 0) {
    state.hidden = embed(input);
  }
  LayerInput layer;
  layer.mask = with_safe_rows(padding_mask(input.attention_mask));
  run_range(layers_, begin, end, layer, input.hidden_states, state);
  return state;
}

} // namespace tessera::zoo
