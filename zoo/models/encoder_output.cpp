// SPDX-License-Identifier: Apache-2.0
// The heads of Encoder.

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/heads/class_heads.h"
#include "tessera/zoo/heads/token_heads.h"
#include "tessera/zoo/layers/losses.h"
#include "tessera/zoo/models/encoder.h"
#include "tessera/zoo/models/input_checks.h"
#include "tessera/zoo/models/vocab_head.h"

#include <torch/types.h>

namespace tessera::zoo {

std::unique_ptr<Head> Encoder::head() {
  const HeadInputs inputs{
      .vocab = encoder_.vocab, .token_types = encoder_.token_types};
  switch (head_kind_) {
    case EncoderHead::kBase:
      break;
    case EncoderHead::kMaskedLm:
    case EncoderHead::kPreTraining:
      return std::make_unique<MaskedTokenHead>(
          inputs, head_kind_ == EncoderHead::kPreTraining);
    case EncoderHead::kSequenceClassification:
      return std::make_unique<ClassHead>(inputs, encoder_.classifier);
    case EncoderHead::kTokenClassification:
      return std::make_unique<TokenHead>(inputs, encoder_.classifier.labels);
    case EncoderHead::kQuestionAnswering:
      return std::make_unique<AnswerHead>(inputs);
    case EncoderHead::kMultipleChoice:
      return std::make_unique<ChoiceHead>(inputs);
    case EncoderHead::kNextSentence:
      return std::make_unique<ClassHead>(inputs, ClassifierOptions{});
  }
  return nullptr;
}

at::Tensor Encoder::dropped(const at::Tensor& x) const {
  const double share = head_kind_ == EncoderHead::kMultipleChoice
                           ? encoder_.choice_dropout
                           : encoder_.classifier_dropout;
  return LayerContext().dropout(x, share, is_training());
}

at::Tensor Encoder::pooled(const at::Tensor& hidden) {
  const at::Tensor first = hidden.select(1, 0);
  const bool drops = head_kind_ == EncoderHead::kSequenceClassification &&
                     encoder_.dropout_before_pooler;
  return pooler_activation_(pooler_.forward(drops ? dropped(first) : first));
}

ModelOutput Encoder::output(const ModelInput& input, const LayerState& state) {
  ModelOutput output;
  const bool tokens_only = head_kind_ == EncoderHead::kMaskedLm;
  at::Tensor full;
  if (!tokens_only || input.hidden_states) {
    full = context_.full(state.hidden);
  }
  if (input.hidden_states) {
    output.hidden_states = hidden_states(state.entered, full);
  }
  switch (head_kind_) {
    case EncoderHead::kBase:
      output.last_hidden_state = full;
      if (pools()) {
        output.pooler_output = pooled(full);
      }
      break;
    case EncoderHead::kMaskedLm:
      output.loss = predict_tokens(input, state.hidden, output.logits);
      break;
    case EncoderHead::kPreTraining:
      pre_train(input, state.hidden, output);
      break;
    case EncoderHead::kSequenceClassification:
    case EncoderHead::kTokenClassification:
    case EncoderHead::kMultipleChoice:
      classify(input, full, output);
      break;
    case EncoderHead::kQuestionAnswering:
      add_answers(input, classifier_.forward(full), output);
      break;
    case EncoderHead::kNextSentence:
      follow(input, full, output);
      break;
  }
  return output;
}

at::Tensor Encoder::predict_tokens(
    const ModelInput& input,
    const at::Tensor& hidden,
    at::Tensor& logits) {
  check_same_shape("labels", input.labels, input.input_ids);
  const at::Tensor weight =
      encoder_.tied_head ? tokens_.weight() : head_->local_weight();
  const at::Tensor bias = head_->local_bias();
  const VocabHead head(context_);
  if (input.loss_only) {
    TESSERA_CHECK(input.labels.defined(), "loss_only without labels");
    if (context_.parallel() != nullptr || context_.context() != nullptr) {
      return head.loss(head_->forward(hidden), weight, bias, input.labels);
    }
    // Few tokens are masked: the head skips the others.
    const at::Tensor labels = input.labels.flatten();
    const at::Tensor masked =
        labels.ne(CrossEntropyOptions().ignore_index).nonzero().squeeze(1);
    return head.loss(
        head_->forward(hidden.flatten(0, 1).index_select(0, masked)),
        weight,
        bias,
        labels.index_select(0, masked));
  }
  const at::Tensor x = head_->forward(hidden);
  logits = head.logits(x, weight, bias);
  return input.labels.defined() ? cross_entropy(logits, input.labels)
                                : at::Tensor();
}

void Encoder::classify(
    const ModelInput& input,
    const at::Tensor& hidden,
    ModelOutput& output) {
  const bool of_tokens = head_kind_ == EncoderHead::kTokenClassification;
  output.logits = classifier_.forward(dropped(
      of_tokens ? hidden
      : pools() ? pooled(hidden)
                : hidden.select(1, -1)));
  if (head_kind_ == EncoderHead::kMultipleChoice) {
    output.logits = output.logits.view({-1, input.input_ids.size(1)});
  }
  if (!input.labels.defined()) {
    return;
  }
  if (of_tokens) {
    check_same_shape("labels", input.labels, input.input_ids);
    output.loss = cross_entropy(output.logits, input.labels);
  } else if (head_kind_ == EncoderHead::kMultipleChoice) {
    output.loss = cross_entropy(output.logits, input.labels.flatten());
  } else {
    output.loss =
        classifier_loss(output.logits, input.labels, encoder_.classifier);
  }
}

void Encoder::follow(
    const ModelInput& input,
    const at::Tensor& hidden,
    ModelOutput& output) {
  output.logits = next_sentence_.forward(pooled(hidden));
  if (input.labels.defined()) {
    output.loss = cross_entropy(output.logits, input.labels.flatten());
  }
}

void Encoder::pre_train(
    const ModelInput& input,
    const at::Tensor& hidden,
    ModelOutput& output) {
  at::Tensor logits;
  const at::Tensor loss = predict_tokens(input, hidden, logits);
  const at::Tensor follows =
      next_sentence_.forward(pooled(context_.full(hidden)));
  output.others["seq_relationship_logits"] = follows;
  if (logits.defined()) {
    output.others["prediction_logits"] = logits;
  }
  const auto label = input.others.find("next_sentence_label");
  if (loss.defined() && label != input.others.end()) {
    const at::Tensor of_rows = cross_entropy(follows, label->second.flatten());
    output.others[kSecondLoss] = of_rows;
    output.loss = loss + of_rows;
  }
}

} // namespace tessera::zoo
