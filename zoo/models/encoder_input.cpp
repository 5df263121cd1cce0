// SPDX-License-Identifier: Apache-2.0
// The inputs of Encoder: checks, positions and global tokens.

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/layers/positions.h"
#include "tessera/zoo/models/encoder.h"
#include "tessera/zoo/models/input_checks.h"

#include <torch/types.h>

#include <string_view>
#include <vector>

namespace tessera::zoo {

namespace {

/// The position of each row's first separator: [B, 1].
at::Tensor ends_of_questions(const at::Tensor& ids, int64_t separator) {
  const at::Tensor found = ids.eq(separator);
  TESSERA_CHECK(
      found.sum(1).eq(3).all().item<bool>(),
      "a row has fewer than three separators (token {}), so that its global tokens are unknown; pass global_attention_mask",
      separator);
  return found.to(at::kByte).argmax(1, /*keepdim=*/true);
}

} // namespace

ModelInput Encoder::texts_of(const ModelInput& choices) const {
  if (head_kind_ != EncoderHead::kMultipleChoice) {
    return choices;
  }
  TESSERA_CHECK(
      choices.input_ids.defined() && choices.input_ids.dim() == 3,
      "input_ids are {}; multiple choice takes [batch, choices, sequence]",
      choices.input_ids.defined() ? choices.input_ids.sizes()
                                  : at::IntArrayRef());
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

void Encoder::check(const ModelInput& given) const {
  const ModelInput input = texts_of(given);
  check_ids("input_ids", input.input_ids, encoder_.vocab);
  check_same_shape("attention_mask", input.attention_mask, input.input_ids);
  if (input.token_type_ids.defined()) {
    check_ids("token_type_ids", input.token_type_ids, encoder_.token_types);
    check_same_shape("token_type_ids", input.token_type_ids, input.input_ids);
  }
  std::vector<std::string_view> taken = {
      "input_ids", "attention_mask", "token_type_ids"};
  if (encoder_.position_kind == EncoderPositions::kLearned) {
    taken.emplace_back("position_ids");
  }
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
      check_same_shape("global_attention_mask", found->second, input.input_ids);
    }
  }
  check_not_taken(input, taken);
  const int64_t length = input.input_ids.size(1);
  const int64_t most =
      encoder_.positions - (encoder_.positions_skip_padding
                                ? encoder_.padding_id.value_or(0) + 1
                                : 0);
  // Padding takes no positions; only sequences that seem too long synchronize
  // with the device.
  const bool fits =
      length <= most ||
      (encoder_.positions_skip_padding && !input.position_ids.defined() &&
       position_ids(input).max().item<int64_t>() < encoder_.positions);
  TESSERA_CHECK(
      fits,
      "sequences of {} tokens; the model has {} positions; truncate the sequences",
      length,
      most);
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

at::Tensor Encoder::global_mask(const ModelInput& input) const {
  if (const auto found = input.others.find("global_attention_mask");
      found != input.others.end()) {
    return found->second;
  }
  const at::Tensor& ids = input.input_ids;
  const at::Tensor positions =
      torch::arange(ids.size(1), ids.options().dtype(at::kLong));
  switch (head_kind_) {
    case EncoderHead::kSequenceClassification:
      return positions.eq(0).expand_as(ids);
    case EncoderHead::kQuestionAnswering:
      return positions.lt(ends_of_questions(ids, encoder_.separator_id));
    case EncoderHead::kMultipleChoice:
      // A second separator follows the first.
      return positions.gt(ends_of_questions(ids, encoder_.separator_id) + 1);
    default:
      return {};
  }
}

} // namespace tessera::zoo
