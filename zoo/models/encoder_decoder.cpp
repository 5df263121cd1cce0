// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/encoder_decoder.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/lazy/numbered_init.h"
#include "tessera/zoo/layers/attention_function.h"
#include "tessera/zoo/models/input_checks.h"
#include "tessera/zoo/models/layer_costs.h"

#include <torch/types.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::zoo {

namespace {

std::vector<pipeline::LayerCost> costs_of(
    const EncoderDecoderConfig& config,
    EncoderDecoderHead head) {
  std::vector<TransformerLayerOptions> layers = config.encoder.layers;
  if (has_decoder(head)) {
    layers.insert(
        layers.end(),
        config.decoder.layers.begin(),
        config.decoder.layers.end());
  }
  return layer_costs(
      layers,
      head == EncoderDecoderHead::kLanguageModel
          ? config.vocab * config.features
          : 0);
}

} // namespace

EncoderDecoder::EncoderDecoder(
    const EncoderDecoderConfig& config,
    EncoderDecoderHead head,
    const LayerContext& context,
    nlohmann::json json,
    NameTable names)
    : LayeredModel(
          context,
          std::move(json),
          std::move(names),
          costs_of(config, head),
          {"head.", "pooler.", "classifier."}),
      config_(config),
      head_kind_(head),
      encoder_layers_(static_cast<int>(config.encoder.layers.size())) {
  config_.decoder.before = encoder_layers_;
  make_embedding();
  const auto make_half = [&](const char* name,
                             const RelativeStackOptions& options,
                             int before) {
    const auto local = local_layers(before, options.layers.size());
    return local.empty()
               ? RelativeStack(nullptr)
               : register_module(name, RelativeStack(context_, options, local));
  };
  encoder_ = make_half("encoder", config_.encoder, 0);
  if (has_decoder()) {
    decoder_ = make_half("decoder", config_.decoder, encoder_layers_);
  }
  if (stage().has_last()) {
    const sharding::NumberedInit init(stage().count());
    make_end();
  }
}

void EncoderDecoder::make_end() {
  const auto full = [&](const char* name, int64_t outputs) {
    return Linear::full(
        *this,
        name,
        {config_.features, outputs, true, 1, config_.class_deviation});
  };
  switch (head_kind_) {
    case EncoderDecoderHead::kLanguageModel:
      if (!config_.tied_head) {
        head_ = Linear::column(
            *this,
            "head",
            context_,
            {config_.features,
             config_.vocab,
             false,
             1,
             config_.head_deviation});
      }
      break;
    case EncoderDecoderHead::kSequenceClassification:
      pooler_ = full("pooler", config_.features);
      [[fallthrough]];
    case EncoderDecoderHead::kTokenClassification:
      classifier_ = full("classifier", config_.classifier.labels);
      break;
    case EncoderDecoderHead::kQuestionAnswering:
      classifier_ = full("classifier", 2);
      break;
    default:
      break;
  }
}

void EncoderDecoder::make_embedding() {
  const bool is_head = head_kind_ == EncoderDecoderHead::kLanguageModel &&
                       config_.tied_head && stage().has_last();
  const bool starts_decoder = has_decoder() && stage().has(encoder_layers_);
  if (!stage().has_first() && !starts_decoder && !is_head) {
    return;
  }
  const auto embeddings = register_module(
      "embeddings", std::make_shared<torch::nn::Module>("Embeddings"));
  tokens_ = Embedding(
      *embeddings,
      "tokens",
      context_,
      {config_.vocab, config_.features, {}, config_.embedding_deviation});
}

void EncoderDecoder::check(const ModelInput& input) const {
  check_ids("input_ids", input.input_ids, config_.vocab);
  check_same_shape("attention_mask", input.attention_mask, input.input_ids);
  std::vector<std::string_view> taken = {"input_ids", "attention_mask"};
  if (has_decoder()) {
    taken.insert(taken.end(), {"decoder_input_ids", "decoder_attention_mask"});
  }
  switch (head_kind_) {
    case EncoderDecoderHead::kBase:
    case EncoderDecoderHead::kEncoderOnly:
      break;
    case EncoderDecoderHead::kQuestionAnswering:
      taken.insert(taken.end(), {"start_positions", "end_positions"});
      break;
    default:
      taken.emplace_back("labels");
  }
  check_not_taken(input, taken);
  if (!has_decoder()) {
    check_same_shape("labels", input.labels, input.input_ids);
    return;
  }
  const at::Tensor ids = decoder_ids(input);
  check_ids("decoder_input_ids", ids, config_.vocab);
  if (head_kind_ == EncoderDecoderHead::kLanguageModel) {
    check_same_shape("labels", input.labels, ids);
  }
  check_mask(
      "decoder_attention_mask",
      input.decoder_attention_mask,
      ids.size(0),
      past_tokens(input) + ids.size(1));
  TESSERA_CHECK(
      ids.size(0) == input.input_ids.size(0),
      "decoder_input_ids are {} and input_ids {}; they must have the same number of rows",
      ids.sizes(),
      input.input_ids.sizes());
}

at::Tensor EncoderDecoder::decoder_ids(const ModelInput& input) const {
  if (input.decoder_input_ids.defined()) {
    return input.decoder_input_ids;
  }
  if (head_kind_ == EncoderDecoderHead::kSequenceClassification ||
      head_kind_ == EncoderDecoderHead::kQuestionAnswering) {
    return at::constant_pad_nd(input.input_ids, {1, -1}, config_.start_token);
  }
  TESSERA_CHECK(
      input.labels.defined() && input.labels.dim() == 2,
      "decoder_input_ids are missing; without them the model needs labels [batch, sequence]");
  return at::constant_pad_nd(input.labels, {1, -1}, config_.start_token)
      .masked_fill(
          at::constant_pad_nd(input.labels, {1, -1}, 0).lt(0),
          config_.padding_token);
}

void EncoderDecoder::start(
    RelativeStack& half,
    const at::Tensor& ids,
    int64_t past,
    LayerState& state) {
  state.hidden = context_.dropout(
      tokens_.forward(context_.local_tokens(ids)),
      config_.dropout,
      is_training());
  state.bias = half->bias(ids.size(1), ids.device(), past);
}

LayerState EncoderDecoder::run_layers(
    const ModelInput& input,
    LayerState state,
    int begin,
    int end) {
  const bool is_read = past_tokens(input) > 0;
  if (begin < encoder_layers_ && !is_read) {
    encode(input, state, begin, std::min(end, encoder_layers_));
  }
  if (end > encoder_layers_) {
    decode(
        input,
        state,
        std::max(begin - encoder_layers_, 0),
        end - encoder_layers_);
  }
  return state;
}

void EncoderDecoder::encode(
    const ModelInput& input,
    LayerState& state,
    int begin,
    int end) {
  if (begin == 0) {
    start(encoder_, input.input_ids, /*past=*/0, state);
  }
  LayerInput layer;
  layer.pattern =
      padding_pattern(input.attention_mask, input.input_ids.size(1));
  encoder_->run(begin, end, layer, input.hidden_states, state);
  if (end == encoder_layers_) {
    // Random numbers between the halves are numbered after those of Model.
    const RandomLayerScope random(stage().count() + 1, state.hidden.device());
    state.memory = encoder_->finish(state.hidden);
    state.hidden = at::Tensor();
    state.bias = at::Tensor();
  }
}

void EncoderDecoder::decode(
    const ModelInput& input,
    LayerState& state,
    int begin,
    int end) {
  const at::Tensor ids = decoder_ids(input);
  if (begin == 0) {
    const RandomLayerScope random(stage().count() + 2, ids.device());
    start(decoder_, ids, past_tokens(input), state);
  }
  if (input.cache != nullptr && state.memory.defined()) {
    input.cache->memory = state.memory; // it is passed on only once
  }
  LayerInput layer;
  layer.cache = input.cache;
  layer.pattern =
      AttentionPattern::causal(
          ids.size(1), past_tokens(input) + ids.size(1), ids.device())
          .without_padding(input.decoder_attention_mask);
  layer.memory = input.cache == nullptr ? state.memory : input.cache->memory;
  layer.memory_pattern = padding_pattern(input.attention_mask, ids.size(1));
  decoder_->run(begin, end, layer, input.hidden_states, state);
}

} // namespace tessera::zoo
