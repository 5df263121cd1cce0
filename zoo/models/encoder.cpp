// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/encoder.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/numbered_init.h"
#include "tessera/zoo/layers/masks.h"
#include "tessera/zoo/models/input_checks.h"
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

/// What has a row for each choice, with a row for each text.
ModelInput texts_of(const ModelInput& choices) {
  TESSERA_CHECK(
      choices.input_ids.defined() && choices.input_ids.dim() == 3,
      "input_ids are ",
      choices.input_ids.defined() ? choices.input_ids.sizes()
                                  : at::IntArrayRef(),
      "; multiple choice takes [batch, choices, sequence]");
  ModelInput texts = choices;
  const auto flatten = [](at::Tensor& tensor) {
    if (tensor.defined() && tensor.dim() == 3) {
      tensor = tensor.flatten(0, 1);
    }
  };
  flatten(texts.input_ids);
  flatten(texts.attention_mask);
  flatten(texts.position_ids);
  flatten(texts.token_type_ids);
  if (const auto found = texts.others.find("global_attention_mask");
      found != texts.others.end()) {
    flatten(found->second);
  }
  return texts;
}

/// The place of each row's first separator: [B, 1].
at::Tensor ends_of_questions(const at::Tensor& ids, int64_t separator) {
  const at::Tensor found = ids.eq(separator);
  TESSERA_CHECK(
      found.sum(1).eq(3).all().item<bool>(),
      "rows without three separators (token ",
      separator,
      "), so it is not known which tokens are global; give "
      "global_attention_mask");
  return found.to(at::kByte).argmax(1, /*keepdim=*/true);
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
          StageLayers(context.place(), static_cast<int>(config.layers.size())),
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
         head_kind_ == EncoderHead::kNextSentence ||
         head_kind_ == EncoderHead::kMultipleChoice ||
         head_kind_ == EncoderHead::kSequenceClassification;
}

bool Encoder::has_windows() const {
  return encoder_.layers.front().reach > 0;
}

void Encoder::make_embeddings() {
  const bool is_tied = stage().has_last() && predicts_tokens() &&
                       encoder_.tied_head;
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
                encoder_.deviation,
                encoder_.tied_head}));
  }
  switch (head_kind_) {
    case EncoderHead::kBase:
    case EncoderHead::kMaskedLm:
      break;
    case EncoderHead::kPreTraining:
    case EncoderHead::kNextSentence:
      next_sentence_ = whole("next_sentence", 2);
      break;
    case EncoderHead::kMultipleChoice:
      classifier_ = whole("classifier", 1);
      break;
    default:
      classifier_ = whole("classifier", encoder_.classifier.labels);
  }
}

void Encoder::check(const ModelInput& given) const {
  const ModelInput input =
      head_kind_ == EncoderHead::kMultipleChoice ? texts_of(given) : given;
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
  if (has_windows()) {
    taken.emplace_back("global_attention_mask");
    if (const auto found = input.others.find("global_attention_mask");
        found != input.others.end()) {
      check_same_shape(
          "global_attention_mask", found->second, input.input_ids);
    }
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
      token_types_->forward(types) + positions_->forward(position_ids(input));
  return context_.dropout(
      norm_->forward(
          tokens_.forward(input.input_ids) + context_.between(places)),
      encoder_.embedding_dropout,
      is_training());
}

at::Tensor Encoder::global_mask(const ModelInput& input) const {
  if (const auto found = input.others.find("global_attention_mask");
      found != input.others.end()) {
    return found->second;
  }
  const at::Tensor& ids = input.input_ids;
  const at::Tensor places =
      torch::arange(ids.size(1), ids.options().dtype(at::kLong));
  switch (head_kind_) {
    case EncoderHead::kSequenceClassification:
      return places.eq(0).expand_as(ids);
    case EncoderHead::kQuestionAnswering:
      return places.lt(ends_of_questions(ids, encoder_.separator_id));
    case EncoderHead::kMultipleChoice:
      // A second separator follows the first.
      return places.gt(ends_of_questions(ids, encoder_.separator_id) + 1);
    default:
      return {};
  }
}

LayerState Encoder::run_layers(
    const ModelInput& given,
    LayerState state,
    int begin,
    int end) {
  const ModelInput input =
      head_kind_ == EncoderHead::kMultipleChoice ? texts_of(given) : given;
  if (begin == 0) {
    state.hidden = embed(input);
  }
  LayerInput layer;
  if (has_windows()) {
    layer.banded = BandedTokens::of(
        input.attention_mask, global_mask(input), input.input_ids);
  } else {
    layer.mask = with_safe_rows(padding_mask(input.attention_mask));
  }
  run_range(layers_, begin, end, layer, input.hidden_states, state);
  return state;
}

} // namespace tessera::zoo
