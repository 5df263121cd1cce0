// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/encoder_decoder.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/numbered_init.h"
#include "tessera/zoo/layers/losses.h"
#include "tessera/zoo/layers/masks.h"
#include "tessera/zoo/models/input_checks.h"
#include "tessera/zoo/models/layer_costs.h"
#include "tessera/zoo/models/vocab_head.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::zoo {

namespace {

std::vector<LayerCost> costs_of(
    const EncoderDecoderConfig& config,
    EncoderDecoderHead head) {
  std::vector<TransformerLayerOptions> layers = config.encoder.layers;
  if (head != EncoderDecoderHead::kEncoderOnly) {
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

/// Those of a half that begins behind `before` layers.
std::vector<int> own_of_half(
    const StageLayers& stage,
    int before,
    size_t count) {
  std::vector<int> own;
  for (const int layer : stage.own()) {
    if (layer >= before && layer < before + static_cast<int>(count)) {
      own.push_back(layer - before);
    }
  }
  return own;
}

} // namespace

EncoderDecoder::EncoderDecoder(
    const EncoderDecoderConfig& config,
    EncoderDecoderHead head,
    const LayerContext& context,
    nlohmann::json json,
    NameTable names)
    : Model(
          std::move(json),
          std::move(names),
          StageLayers(context.place(), costs_of(config, head)),
          {"head."}),
      config_(config),
      head_kind_(head),
      context_(context),
      encoder_layers_(static_cast<int>(config.encoder.layers.size())) {
  config_.decoder.before = encoder_layers_;
  make_embedding();
  const auto make_half = [&](const char* name,
                             const RelativeStackOptions& options,
                             int before) {
    const std::vector<int> own =
        own_of_half(stage(), before, options.layers.size());
    return own.empty()
               ? RelativeStack(nullptr)
               : register_module(name, RelativeStack(context_, options, own));
  };
  encoder_ = make_half("encoder", config_.encoder, 0);
  if (!has_decoder()) {
    return;
  }
  decoder_ = make_half("decoder", config_.decoder, encoder_layers_);
  if (head_kind_ == EncoderDecoderHead::kLanguageModel && !config_.tied_head &&
      stage().has_last()) {
    const NumberedInit init(stage().count());
    head_ = Linear::column(
        *this,
        "head",
        context_,
        {config_.features, config_.vocab, false, 1, config_.head_deviation});
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
  constexpr std::array<std::string_view, 5> kTaken = {
      "input_ids",
      "attention_mask",
      "decoder_input_ids",
      "decoder_attention_mask",
      "labels"};
  if (!has_decoder()) {
    check_not_taken(input, std::span(kTaken).first(2));
    return;
  }
  const bool is_lm = head_kind_ == EncoderDecoderHead::kLanguageModel;
  check_not_taken(input, std::span(kTaken).first(is_lm ? 5 : 4));
  const at::Tensor ids = decoder_ids(input);
  check_ids("decoder_input_ids", ids, config_.vocab);
  check_same_shape("labels", input.labels, ids);
  check_mask(
      "decoder_attention_mask",
      input.decoder_attention_mask,
      ids.size(0),
      past_tokens(input) + ids.size(1));
  TESSERA_CHECK(
      ids.size(0) == input.input_ids.size(0),
      "decoder_input_ids are ",
      ids.sizes(),
      " and input_ids ",
      input.input_ids.sizes(),
      "; they must have as many rows");
}

at::Tensor EncoderDecoder::decoder_ids(const ModelInput& input) const {
  if (input.decoder_input_ids.defined()) {
    return input.decoder_input_ids;
  }
  TESSERA_CHECK(
      input.labels.defined() && input.labels.dim() == 2,
      "decoder_input_ids are missing; without them the model needs labels "
      "[batch, sequence]");
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
      tokens_.forward(context_.own_tokens(ids)),
      config_.dropout,
      is_training());
  state.bias = half->bias(ids.size(1), ids.device(), past);
}

bool EncoderDecoder::takes_cache() const {
  const TensorParallel* tensor = context_.parallel();
  return has_decoder() && context_.context() == nullptr &&
         (tensor == nullptr || !tensor->sequence);
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
  layer.mask = with_safe_rows(padding_mask(input.attention_mask));
  encoder_->run(begin, end, layer, input.hidden_states, state);
  if (end == encoder_layers_) {
    // What is drawn between the halves has numbers behind those of Model.
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
    input.cache->memory = state.memory; // it is handed on once
  }
  LayerInput layer;
  layer.cache = input.cache;
  layer.mask = with_safe_rows(all_of(
      {causal_mask(past_tokens(input) + ids.size(1), ids.device())
           .narrow(2, past_tokens(input), ids.size(1)),
       padding_mask(input.decoder_attention_mask)}));
  layer.memory = input.cache == nullptr ? state.memory : input.cache->memory;
  layer.memory_mask = with_safe_rows(padding_mask(input.attention_mask));
  decoder_->run(begin, end, layer, input.hidden_states, state);
}

ModelOutput EncoderDecoder::output(
    const ModelInput& input,
    const LayerState& state) {
  ModelOutput output;
  const at::Tensor memory =
      state.memory.defined() ? context_.whole(state.memory) : at::Tensor();
  std::vector<at::Tensor> encoded;
  if (input.hidden_states) {
    for (int i = 0; i < encoder_layers_; ++i) {
      encoded.push_back(
          context_.whole(state.entered.at(static_cast<size_t>(i))));
    }
    encoded.push_back(memory);
  }
  if (!has_decoder()) {
    output.last_hidden_state = memory;
    output.hidden_states = std::move(encoded);
    return output;
  }
  if (memory.defined()) {
    output.others["encoder_last_hidden_state"] = memory;
  }
  const at::Tensor hidden = decoder_->finish(state.hidden);
  const bool is_lm = head_kind_ == EncoderDecoderHead::kLanguageModel;
  const at::Tensor last =
      is_lm && !input.hidden_states ? at::Tensor() : context_.whole(hidden);
  if (input.hidden_states) {
    std::vector<at::Tensor> decoded;
    for (size_t i = encoded.size() - 1; i < state.entered.size(); ++i) {
      decoded.push_back(context_.whole(state.entered[i]));
    }
    decoded.push_back(last);
    const auto add = [&](const std::string& name, const auto& states) {
      for (size_t i = 0; i < states.size(); ++i) {
        output.others[name + std::to_string(i)] = states[i];
      }
    };
    add("encoder_hidden_states.", encoded);
    add("decoder_hidden_states.", decoded);
  }
  if (is_lm) {
    add_language_head(input, hidden, output);
  } else {
    output.last_hidden_state = last;
  }
  return output;
}

void EncoderDecoder::add_language_head(
    const ModelInput& input,
    const at::Tensor& hidden,
    ModelOutput& output) {
  const VocabHead head(context_, config_.vocab);
  const at::Tensor weight =
      config_.tied_head ? tokens_.weight() : head_.weight();
  const at::Tensor scaled =
      config_.head_scale == 1 ? hidden : hidden * config_.head_scale;
  if (input.loss_only) {
    TESSERA_CHECK(input.labels.defined(), "loss_only without labels");
    output.loss = head.loss(scaled, weight, {}, input.labels);
    return;
  }
  output.logits = head.logits(
      input.last_logits ? scaled.narrow(1, scaled.size(1) - 1, 1) : scaled,
      weight,
      {});
  if (input.labels.defined()) {
    output.loss = cross_entropy(output.logits, input.labels);
  }
}

} // namespace tessera::zoo
