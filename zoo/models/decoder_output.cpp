// SPDX-License-Identifier: Apache-2.0
// The heads of Decoder.

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/expert_parallel/router_losses.h"
#include "tessera/zoo/heads/class_heads.h"
#include "tessera/zoo/heads/token_heads.h"
#include "tessera/zoo/layers/losses.h"
#include "tessera/zoo/models/decoder.h"
#include "tessera/zoo/models/input_checks.h"
#include "tessera/zoo/models/vocab_head.h"

#include <torch/types.h>

#include <vector>

namespace tessera::zoo {

std::unique_ptr<Head> Decoder::head() {
  const HeadInputs inputs{.vocab = decoder_.vocab};
  switch (head_kind_) {
    case DecoderHead::kBase:
      break;
    case DecoderHead::kCausalLm:
      if (decoder_.labels_in_place) {
        return std::make_unique<BlankHead>(inputs);
      }
      return std::make_unique<NextTokenHead>(inputs);
    case DecoderHead::kSequenceClassification:
      return std::make_unique<ClassHead>(inputs, decoder_.classifier);
    case DecoderHead::kTokenClassification:
      return std::make_unique<TokenHead>(inputs, decoder_.classifier.labels);
    case DecoderHead::kQuestionAnswering:
      return std::make_unique<AnswerHead>(inputs);
  }
  return nullptr;
}

ModelOutput Decoder::output(const ModelInput& input, const LayerState& state) {
  ModelOutput output;
  at::Tensor hidden = state.hidden;
  if (decoder_.final_norm) {
    hidden = final_norm_->forward(hidden);
  }
  if (is_projected()) {
    hidden = project_out_.forward(hidden);
  }
  const bool is_lm = head_kind_ == DecoderHead::kCausalLm;
  if (!is_lm || input.hidden_states) {
    output.last_hidden_state = context_.full(hidden);
  }
  if (input.hidden_states) {
    output.hidden_states =
        hidden_states(state.entered, output.last_hidden_state);
  }
  if (is_lm) {
    add_language_head(input, hidden, output);
    if (state.routed.defined()) {
      add_router_losses(state, output);
    }
  } else if (head_kind_ == DecoderHead::kSequenceClassification) {
    add_classifier(input, output);
  } else if (head_kind_ == DecoderHead::kTokenClassification) {
    add_token_classifier(input, output);
  } else if (head_kind_ == DecoderHead::kQuestionAnswering) {
    add_answers(input, score_.forward(output.last_hidden_state), output);
  }
  if (head_kind_ != DecoderHead::kBase) {
    output.last_hidden_state = at::Tensor();
  }
  return output;
}

void Decoder::add_language_head(
    const ModelInput& input,
    const at::Tensor& hidden,
    ModelOutput& output) {
  const at::Tensor weight =
      decoder_.tied_head ? tokens_.weight() : head_.weight();
  const at::Tensor bias = decoder_.tied_head ? at::Tensor() : head_.bias();
  at::Tensor targets;
  if (input.labels.defined()) {
    check_same_shape("labels", input.labels, input.input_ids);
    targets = decoder_.labels_in_place ? input.labels
                                       : next_token_targets(input.labels);
  }
  TESSERA_CHECK(
      decoder_.logit_scale == 1 || !bias.defined(),
      "Decoder: scaled logits need a head without bias");
  VocabHead(context_).add_result(
      input,
      decoder_.logit_scale == 1 ? hidden : hidden * decoder_.logit_scale,
      weight,
      bias,
      targets,
      output);
}

void Decoder::add_routed(
    const ModelInput& input,
    int begin,
    int end,
    LayerState& state) {
  const at::Tensor counts = context_.local_tokens(input.attention_mask);
  std::vector<sharding::RouterSums> sums{sharding::unpacked(state.routed)};
  const std::vector<int> numbers = stage().local();
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] < begin || numbers[i] >= end) {
      continue; // in another chunk
    }
    for (const auto& module : layers_->block(i)->modules()) {
      if (auto* experts = dynamic_cast<ExpertsImpl*>(module.get())) {
        const RoutedTokens tokens = experts->take_routing();
        sums.push_back(
            sharding::router_sums(tokens.logits, tokens.routing, counts));
      }
    }
  }
  state.routed = packed(total(sums));
}

void Decoder::add_router_losses(const LayerState& state, ModelOutput& output) {
  sharding::RouterSums sums = sharding::unpacked(state.routed);
  if (context_.experts() != nullptr) {
    sums = sharding::total_over_group(sums, *context_.experts()->gradients);
  } else if (context_.context() != nullptr) {
    sums = sharding::total_over_group(sums, *context_.context()->group);
  }
  const at::Tensor balance = load_balancing_loss(sums);
  output.others.emplace("aux_loss", balance);
  if (output.loss.defined()) {
    output.loss = output.loss + decoder_.router_balance * balance;
    if (decoder_.router_z != 0) {
      output.loss =
          output.loss + decoder_.router_z * sharding::router_z_loss(sums);
    }
  }
}

void Decoder::add_classifier(const ModelInput& input, ModelOutput& output) {
  const at::Tensor last_tokens =
      last_token_places(input.input_ids, decoder_.padding_token);
  const at::Tensor rows =
      torch::arange(last_tokens.size(0), last_tokens.options());
  add_classes(
      input,
      score_.forward(output.last_hidden_state.index({rows, last_tokens})),
      decoder_.classifier,
      output);
}

void Decoder::add_token_classifier(
    const ModelInput& input,
    ModelOutput& output) {
  check_same_shape("labels", input.labels, input.input_ids);
  output.logits = score_.forward(LayerContext().dropout(
      output.last_hidden_state, decoder_.classifier_dropout, is_training()));
  if (input.labels.defined()) {
    output.loss = cross_entropy(output.logits, input.labels);
  }
}

} // namespace tessera::zoo
