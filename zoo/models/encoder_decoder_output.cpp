// SPDX-License-Identifier: Apache-2.0
// The heads of EncoderDecoder.

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/heads/class_heads.h"
#include "tessera/zoo/heads/token_heads.h"
#include "tessera/zoo/layers/losses.h"
#include "tessera/zoo/models/encoder_decoder.h"
#include "tessera/zoo/models/input_checks.h"
#include "tessera/zoo/models/vocab_head.h"

#include <torch/types.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera::zoo {

namespace {

/// The last position of each row where `found` [B, S] is true: [B].
at::Tensor last_places(const at::Tensor& found, int64_t token) {
  TESSERA_CHECK(
      found.any(1).all().item<bool>(),
      "a row of input_ids lacks the end token {}, at which it is classified",
      token);
  return (found *
          torch::arange(found.size(1), found.options().dtype(at::kLong)))
      .argmax(-1);
}

} // namespace

std::unique_ptr<Head> EncoderDecoder::head() {
  const HeadInputs inputs{.vocab = config_.vocab};
  switch (head_kind_) {
    case EncoderDecoderHead::kBase:
    case EncoderDecoderHead::kEncoderOnly:
      break;
    case EncoderDecoderHead::kLanguageModel:
      return std::make_unique<SecondTextHead>(inputs);
    case EncoderDecoderHead::kSequenceClassification:
      return std::make_unique<ClassHead>(inputs, config_.classifier);
    case EncoderDecoderHead::kTokenClassification:
      return std::make_unique<TokenHead>(inputs, config_.classifier.labels);
    case EncoderDecoderHead::kQuestionAnswering:
      return std::make_unique<AnswerHead>(inputs);
  }
  return nullptr;
}

ModelOutput EncoderDecoder::output(
    const ModelInput& input,
    const LayerState& state) {
  ModelOutput output;
  const at::Tensor memory =
      state.memory.defined() ? context_.full(state.memory) : at::Tensor();
  std::vector<at::Tensor> encoded;
  if (input.hidden_states) {
    for (int i = 0; i < encoder_layers_; ++i) {
      encoded.push_back(
          context_.full(state.entered.at(static_cast<size_t>(i))));
    }
    encoded.push_back(memory);
  }
  if (!has_decoder()) {
    output.hidden_states = std::move(encoded);
    if (head_kind_ == EncoderDecoderHead::kEncoderOnly) {
      output.last_hidden_state = memory;
    } else {
      classify(input, memory, output);
    }
    return output;
  }
  if (memory.defined()) {
    output.others["encoder_last_hidden_state"] = memory;
  }
  const at::Tensor hidden = decoder_->finish(state.hidden);
  const bool is_lm = head_kind_ == EncoderDecoderHead::kLanguageModel;
  const at::Tensor last =
      is_lm && !input.hidden_states ? at::Tensor() : context_.full(hidden);
  if (input.hidden_states) {
    const auto decoded = hidden_states(
        std::span(state.entered).subspan(encoded.size() - 1), last);
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
  } else if (head_kind_ == EncoderDecoderHead::kBase) {
    output.last_hidden_state = last;
  } else {
    classify(input, last, output);
  }
  return output;
}

void EncoderDecoder::classify(
    const ModelInput& input,
    const at::Tensor& last,
    ModelOutput& output) {
  const auto dropped = [&](const at::Tensor& x) {
    return LayerContext().dropout(x, config_.classifier_dropout, is_training());
  };
  if (head_kind_ == EncoderDecoderHead::kQuestionAnswering) {
    add_answers(input, classifier_.forward(last), output);
    return;
  }
  if (head_kind_ == EncoderDecoderHead::kTokenClassification) {
    output.logits = classifier_.forward(dropped(last));
    if (input.labels.defined()) {
      output.loss = cross_entropy(output.logits, input.labels);
    }
    return;
  }
  const at::Tensor ends =
      last_places(input.input_ids.eq(config_.end_token), config_.end_token);
  const at::Tensor rows = torch::arange(ends.size(0), ends.options());
  const at::Tensor pooled =
      at::tanh(pooler_.forward(dropped(last.index({rows, ends}))));
  add_classes(
      input, classifier_.forward(dropped(pooled)), config_.classifier, output);
}

void EncoderDecoder::add_language_head(
    const ModelInput& input,
    const at::Tensor& hidden,
    ModelOutput& output) {
  const at::Tensor weight =
      config_.tied_head ? tokens_.weight() : head_.weight();
  const at::Tensor scaled =
      config_.head_scale == 1 ? hidden : hidden * config_.head_scale;
  VocabHead(context_).add_result(
      input, scaled, weight, {}, input.labels, output);
}

} // namespace tessera::zoo
