// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/decoder.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/memory/to_device.h"
#include "tessera/sharding/lazy/numbered_init.h"
#include "tessera/zoo/layers/positions.h"
#include "tessera/zoo/models/input_checks.h"
#include "tessera/zoo/models/layer_costs.h"

#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <string_view>
#include <utility>

namespace tessera::zoo {

namespace {

/// The layers' options, completed for this model's losses.
std::vector<TransformerLayerOptions> completed(const DecoderConfig& config) {
  std::vector<TransformerLayerOptions> layers = config.layers;
  for (TransformerLayerOptions& layer : layers) {
    if (layer.experts) {
      layer.experts->keep_routing = config.router_losses;
    }
  }
  return layers;
}

bool has_experts(const DecoderConfig& config) {
  return std::any_of(
      config.layers.begin(), config.layers.end(), [](const auto& layer) {
        return layer.experts.has_value();
      });
}

/// Marks the table if other ranks hold some of the experts.
NameTable table_of(
    NameTable names,
    const DecoderConfig& config,
    const LayerContext& context) {
  names.is_part = context.experts() != nullptr &&
                  context.experts()->group->size() > 1 && has_experts(config);
  return names;
}

std::vector<std::string> fresh_parts(DecoderHead head) {
  return head == DecoderHead::kBase || head == DecoderHead::kCausalLm
             ? std::vector<std::string>{}
             : std::vector<std::string>{"score."};
}

bool is_dynamic(const std::optional<RotaryOptions>& rotary) {
  return rotary && rotary->scaling.kind == RotaryScalingKind::kDynamic;
}

/// [1, heads, 1, length], float32: each head's slope times the position of a
/// key before the last token. That the query's position is left out adds the
/// same to all scores of a query, which softmax takes out.
at::Tensor distance_bias(
    const std::vector<double>& slopes,
    int64_t length,
    at::Device device) {
  const at::Tensor positions = torch::arange(
      1 - length, 1, at::TensorOptions(at::kFloat).device(device));
  const at::Tensor heads =
      runtime::to_device(torch::tensor(slopes, at::kFloat), device);
  return (heads.unsqueeze(-1) * positions)
      .view({1, static_cast<int64_t>(slopes.size()), 1, length});
}

/// Warns, once per process, about positions beyond the trained length: rotary
/// embeddings extend to them, but the model is of little use there.
void warn_of_length(const RotaryOptions& rotary, int64_t length) {
  static std::atomic<bool> is_told = false;
  if (rotary.max_positions > 0 && length > rotary.max_positions &&
      rotary.scaling.kind != RotaryScalingKind::kDynamic &&
      !is_told.exchange(true) && is_log_rank_zero()) {
    log_warning(
        "a sequence of {} tokens exceeds the {} positions that the model was trained for (max_position_embeddings in config.json); expect worse results, or truncate it",
        length,
        rotary.max_positions);
  }
}

} // namespace

Decoder::Decoder(
    const DecoderConfig& config,
    DecoderHead head,
    const LayerContext& context,
    nlohmann::json json,
    NameTable names)
    : LayeredModel(
          context,
          std::move(json),
          table_of(std::move(names), config, context),
          layer_costs(
              config.layers,
              head == DecoderHead::kCausalLm ? config.vocab * config.embedded()
                                             : 0),
          fresh_parts(head)),
      decoder_(config),
      head_kind_(head) {
  if (config.rotary) {
    rotary_frequencies(*config.rotary, 1); // throws if they are invalid
  }
  decoder_.router_losses =
      config.router_losses && head == DecoderHead::kCausalLm;
  make_embeddings();
  layers_ = register_module(
      "layers", make_layers(context_, completed(decoder_), stage().local()));
  if (stage().has_last()) {
    const sharding::NumberedInit init(stage().count());
    make_end();
  }
}

void Decoder::make_embeddings() {
  const int64_t features = decoder_.features;
  const int64_t embedded = decoder_.embedded();
  const bool is_head =
      head_kind_ == DecoderHead::kCausalLm && decoder_.tied_head;
  if (!stage().has_first() && !(stage().has_last() && is_head)) {
    return;
  }
  const auto embeddings = register_module(
      "embeddings", std::make_shared<torch::nn::Module>("Embeddings"));
  tokens_ = Embedding(
      *embeddings,
      "tokens",
      context_,
      {decoder_.vocab, embedded, decoder_.padding_id, decoder_.deviation});
  if (!stage().has_first()) {
    return;
  }
  const auto table = [&](const char* name, int64_t rows) {
    return full_table(
        *embeddings, name, {rows, features, {}, decoder_.deviation});
  };
  if (decoder_.learned_positions > 0) {
    positions_ = table("positions", decoder_.learned_positions);
  }
  if (decoder_.block_positions > 0) {
    block_positions_ = table("block_positions", decoder_.block_positions);
  }
  if (is_projected()) {
    project_in_ = Linear::undivided(
        *this,
        "project_in",
        context_,
        {embedded, features, false, 1, decoder_.deviation});
  }
}

void Decoder::make_end() {
  const int64_t embedded = decoder_.embedded();
  if (is_projected()) {
    project_out_ = Linear::undivided(
        *this,
        "project_out",
        context_,
        {decoder_.features, embedded, false, 1, decoder_.deviation});
  }
  if (decoder_.final_norm) {
    final_norm_ = register_module("final_norm", Norm(*decoder_.final_norm));
  }
  if (head_kind_ == DecoderHead::kCausalLm && !decoder_.tied_head) {
    head_ = Linear::column(
        *this,
        "head",
        context_,
        {embedded, decoder_.vocab, decoder_.head_bias, 1, decoder_.deviation});
  }
  const auto score = [&](int64_t outputs, bool bias) {
    score_ = Linear::full(
        *this, "score", {embedded, outputs, bias, 1, decoder_.deviation});
  };
  switch (head_kind_) {
    case DecoderHead::kSequenceClassification:
      score(decoder_.classifier.labels, false);
      break;
    case DecoderHead::kTokenClassification:
      score(decoder_.classifier.labels, decoder_.token_bias);
      break;
    case DecoderHead::kQuestionAnswering:
      score(2, true);
      break;
    default:
      break;
  }
}

std::optional<int64_t> Decoder::position_limit() const {
  return decoder_.position_limit();
}

bool Decoder::keeps_cache() const {
  return takes_cache() && !decoder_.prefix && !is_dynamic(decoder_.rotary) &&
         !is_dynamic(decoder_.local_rotary);
}

bool Decoder::takes_documents() const {
  return !decoder_.prefix && decoder_.block_positions == 0;
}

std::string Decoder::cannot_drop_layers() const {
  return decoder_.router_losses
             ? "its router losses are of all layers; turn off output_router_logits"
             : "";
}

std::string Decoder::cannot_drop_tokens() const {
  const std::string reason = cannot_drop_divided_tokens();
  return reason.empty() ? cannot_drop_layers() : reason;
}

void Decoder::check(const ModelInput& input) const {
  check_ids("input_ids", input.input_ids, decoder_.vocab);
  const int64_t length = past_tokens(input) + input.input_ids.size(1);
  check_mask(
      "attention_mask", input.attention_mask, input.input_ids.size(0), length);
  if (decoder_.token_types && input.token_type_ids.defined()) {
    check_ids("token_type_ids", input.token_type_ids, decoder_.vocab);
    check_same_shape("token_type_ids", input.token_type_ids, input.input_ids);
  }
  std::vector<std::string_view> taken(
      kDecoderInputs.begin(),
      kDecoderInputs.end() - (decoder_.token_types ? 0 : 1));
  if (decoder_.prefix) {
    taken.emplace_back("sep");
  }
  if (takes_documents()) {
    taken.emplace_back("document_ids");
    if (const auto found = input.others.find("document_ids");
        found != input.others.end()) {
      check_same_shape("document_ids", found->second, input.input_ids);
      TESSERA_CHECK(
          input.cache == nullptr,
          "document_ids and a cache are given; a cache has one document");
    }
  }
  if (head_kind_ == DecoderHead::kQuestionAnswering) {
    std::erase(taken, "labels");
    taken.insert(taken.end(), {"start_positions", "end_positions"});
  }
  check_not_taken(input, taken);
  TESSERA_CHECK(
      decoder_.block_positions == 0 || !input.position_ids.defined() ||
          (input.position_ids.dim() == 3 && input.position_ids.size(1) == 2),
      "position_ids are {}; they must be [batch, 2, sequence]: positions, and positions within blanks",
      input.position_ids.defined() ? input.position_ids.sizes()
                                   : at::IntArrayRef());
  const int64_t most = decoder_.learned_positions - decoder_.position_offset;
  const bool has_own_positions =
      decoder_.block_positions > 0 && input.position_ids.defined();
  if (has_own_positions && input.position_ids.is_cpu()) {
    const auto last = input.position_ids.max().item<int64_t>();
    TESSERA_CHECK(
        last < most,
        "position_ids hold {}; the model has {} positions; use shorter sequences",
        last,
        most);
  }
  TESSERA_CHECK(
      decoder_.learned_positions == 0 || has_own_positions || length <= most,
      "sequences of {} tokens; the model has {} positions; truncate the sequences",
      length,
      most);
}

at::Tensor Decoder::position_ids(const ModelInput& input) const {
  if (input.position_ids.defined()) {
    const at::Tensor ids = input.position_ids.to(at::kLong);
    return decoder_.block_positions > 0 ? ids.select(1, 0) : ids;
  }
  if (decoder_.positions_skip_padding && input.attention_mask.defined()) {
    return positions_without_padding(input.attention_mask)
        .narrow(1, past_tokens(input), input.input_ids.size(1));
  }
  return torch::arange(
             past_tokens(input),
             past_tokens(input) + input.input_ids.size(1),
             input.input_ids.options().dtype(at::kLong))
      .unsqueeze(0);
}

at::Tensor Decoder::embed(
    const ModelInput& input,
    const at::Tensor& positions) {
  at::Tensor x = tokens_.forward(context_.local_tokens(input.input_ids));
  if (decoder_.embedding_scale != 1) {
    x = x * torch::scalar_tensor(decoder_.embedding_scale, at::kDouble)
                .to(x.scalar_type())
                .item<double>();
  }
  if (decoder_.token_types && input.token_type_ids.defined()) {
    x = x + tokens_.forward(context_.local_tokens(input.token_type_ids));
  }
  if (is_projected()) {
    x = project_in_.forward(x);
  }
  if (decoder_.learned_positions > 0) {
    x = x + context_.between(positions_->forward(
                context_.local_tokens(positions) + decoder_.position_offset));
  }
  if (decoder_.block_positions > 0) {
    const at::Tensor blocks = input.position_ids.defined()
                                  ? input.position_ids.select(1, 1)
                                  : torch::zeros_like(positions);
    x = x + context_.between(
                block_positions_->forward(context_.local_tokens(blocks)));
  }
  return context_.dropout(x, decoder_.embedding_dropout, is_training());
}

LayerInput Decoder::layer_input(
    const ModelInput& input,
    const at::Tensor& positions,
    at::ScalarType dtype) const {
  const int64_t tokens = input.input_ids.size(1);
  const int64_t past = past_tokens(input);
  const int64_t length = past + tokens;
  const at::Device device = input.input_ids.device();
  LayerInput layer;
  layer.cache = input.cache;
  const auto tables = [&](const RotaryOptions& rotary) {
    warn_of_length(rotary, length);
    // Only this kind depends on the length: others need not synchronize with
    // the device.
    const bool ask = input.position_ids.defined() &&
                     rotary.scaling.kind == RotaryScalingKind::kDynamic;
    return rotary_tables(
        rotary,
        context_.local_tokens(positions),
        ask ? positions.max().item<int64_t>() + 1 : length,
        dtype);
  };
  if (decoder_.rotary) {
    layer.rotary = tables(*decoder_.rotary);
  }
  if (decoder_.local_rotary) {
    layer.local_rotary = tables(*decoder_.local_rotary);
  }
  if (!decoder_.distance_slopes.empty()) {
    layer.bias = distance_bias(decoder_.distance_slopes, length, device);
  }
  const auto documents = input.others.find("document_ids");
  const auto hidden = [&](AttentionPattern pattern) {
    if (documents != input.others.end()) {
      pattern = pattern.within_documents(documents->second);
    }
    return pattern.without_padding(input.attention_mask);
  };
  const AttentionPattern causal =
      AttentionPattern::causal(tokens, length, device);
  if (const auto sep = input.others.find("sep"); sep != input.others.end()) {
    TESSERA_CHECK(
        past == 0,
        "'sep' is given for tokens that follow {} cached ones; give it with the first tokens only",
        past);
    layer.pattern = hidden(causal.with_prefix(sep->second));
  } else if (
      input.attention_mask.defined() || documents != input.others.end() ||
      layer.bias.defined() || (past > 0 && tokens > 1)) {
    layer.pattern = hidden(causal);
  }
  if (decoder_.window > 0) {
    layer.local_pattern = hidden(causal.within_window(decoder_.window));
  }
  return layer;
}

LayerState Decoder::run_layers(
    const ModelInput& input,
    LayerState state,
    int begin,
    int end) {
  TESSERA_CHECK(
      decoder_.layer_drop == 0 || !is_training(),
      "'layerdrop' in config.json is {}, which skips layers in training and is not implemented; set it to 0",
      decoder_.layer_drop);
  const at::Tensor positions = position_ids(input);
  if (begin == 0) {
    state.hidden = embed(input, positions);
  }
  const LayerInput layer =
      layer_input(input, positions, state.hidden.scalar_type());
  run_range(
      layers_, begin, end, layer, input.hidden_states, state, step_drops());
  if (decoder_.router_losses && input.cache == nullptr) {
    add_routed(input, begin, end, state);
  }
  return state;
}

} // namespace tessera::zoo
