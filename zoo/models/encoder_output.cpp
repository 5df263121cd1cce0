// SPDX-License-Identifier: Apache-2.0
// What comes behind an encoder's layers.

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/layers/losses.h"
#include "tessera/zoo/models/encoder.h"
#include "tessera/zoo/models/input_checks.h"
#include "tessera/zoo/models/vocab_head.h"

#include <torch/types.h>

namespace tessera::zoo {

namespace {

/// A place outside of the text is not predicted.
at::Tensor place_loss(const at::Tensor& logits, const at::Tensor& places) {
  const int64_t outside = logits.size(1);
  return cross_entropy(
      logits, places.flatten().clamp(0, outside), {.ignore_index = outside});
}

} // namespace

at::Tensor Encoder::dropped(const at::Tensor& x) const {
  return LayerContext().dropout(x, encoder_.classifier_dropout, is_training());
}

at::Tensor Encoder::pooled(const at::Tensor& hidden) {
  const at::Tensor first = hidden.select(1, 0);
  const bool drops = head_kind_ == EncoderHead::kSequenceClassification &&
                     encoder_.dropout_before_pooler;
  return at::tanh(pooler_.forward(drops ? dropped(first) : first));
}

ModelOutput Encoder::output(const ModelInput& input, const LayerState& state) {
  ModelOutput output;
  const bool tokens_only = head_kind_ == EncoderHead::kMaskedLm;
  at::Tensor whole;
  if (!tokens_only || input.hidden_states) {
    whole = context_.whole(state.hidden);
  }
  if (input.hidden_states) {
    for (const at::Tensor& entered : state.entered) {
      output.hidden_states.push_back(context_.whole(entered));
    }
    output.hidden_states.push_back(whole);
  }
  switch (head_kind_) {
    case EncoderHead::kBase:
      output.last_hidden_state = whole;
      output.pooler_output = pooled(whole);
      break;
    case EncoderHead::kMaskedLm:
      output.loss = predict_tokens(input, state.hidden, output.logits);
      break;
    case EncoderHead::kPreTraining:
      pre_train(input, state.hidden, output);
      break;
    case EncoderHead::kSequenceClassification:
    case EncoderHead::kTokenClassification:
      classify(input, whole, output);
      break;
    case EncoderHead::kQuestionAnswering:
      answer(input, whole, output);
      break;
  }
  return output;
}

at::Tensor Encoder::predict_tokens(
    const ModelInput& input,
    const at::Tensor& hidden,
    at::Tensor& logits) {
  check_same_shape("labels", input.labels, input.input_ids);
  const VocabHead head(context_, encoder_.vocab);
  const at::Tensor x = head_->forward(hidden);
  const at::Tensor bias = head_->own_bias();
  if (input.loss_only) {
    TESSERA_CHECK(input.labels.defined(), "loss_only without labels");
    return head.loss(x, tokens_.weight(), bias, input.labels);
  }
  logits = head.logits(x, tokens_.weight(), bias);
  return input.labels.defined() ? cross_entropy(logits, input.labels)
                                : at::Tensor();
}

void Encoder::classify(
    const ModelInput& input,
    const at::Tensor& hidden,
    ModelOutput& output) {
  const bool of_tokens = head_kind_ == EncoderHead::kTokenClassification;
  output.logits =
      classifier_.forward(dropped(of_tokens ? hidden : pooled(hidden)));
  if (!input.labels.defined()) {
    return;
  }
  if (of_tokens) {
    check_same_shape("labels", input.labels, input.input_ids);
    output.loss = cross_entropy(output.logits, input.labels);
  } else {
    output.loss =
        classifier_loss(output.logits, input.labels, encoder_.classifier);
  }
}

void Encoder::answer(
    const ModelInput& input,
    const at::Tensor& hidden,
    ModelOutput& output) {
  const at::Tensor logits = classifier_.forward(hidden);
  const at::Tensor start = logits.select(-1, 0);
  const at::Tensor end = logits.select(-1, 1);
  output.others = {{"start_logits", start}, {"end_logits", end}};
  const auto from = input.others.find("start_positions");
  const auto to = input.others.find("end_positions");
  if (from != input.others.end() && to != input.others.end()) {
    output.loss =
        (place_loss(start, from->second) + place_loss(end, to->second)) / 2;
  }
}

void Encoder::pre_train(
    const ModelInput& input,
    const at::Tensor& hidden,
    ModelOutput& output) {
  at::Tensor logits;
  const at::Tensor loss = predict_tokens(input, hidden, logits);
  const at::Tensor follows =
      next_sentence_.forward(pooled(context_.whole(hidden)));
  output.others["seq_relationship_logits"] = follows;
  if (logits.defined()) {
    output.others["prediction_logits"] = logits;
  }
  const auto label = input.others.find("next_sentence_label");
  if (loss.defined() && label != input.others.end()) {
    output.loss = loss + cross_entropy(follows, label->second.flatten());
  }
}

} // namespace tessera::zoo
