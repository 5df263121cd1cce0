// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/classification.h"

#include "tessera/zoo/layers/losses.h"

#include <torch/types.h>

namespace tessera::zoo {

namespace {

constexpr const char* kRegression = "regression";
constexpr const char* kSingleLabel = "single_label_classification";
constexpr const char* kMultiLabel = "multi_label_classification";

/// Ignores positions outside of the sequence.
at::Tensor place_loss(const at::Tensor& logits, const at::Tensor& places) {
  const int64_t outside = logits.size(1);
  return cross_entropy(
      logits, places.flatten().clamp(0, outside), {.ignore_index = outside});
}

} // namespace

ClassifierOptions ClassifierOptions::from_config(const ConfigFields& fields) {
  ClassifierOptions options{
      fields.labels(), fields.find<std::string>({"problem_type"})};
  TESSERA_CHECK(
      !options.problem_type || *options.problem_type == kRegression ||
          *options.problem_type == kSingleLabel ||
          *options.problem_type == kMultiLabel,
      "{}: problem_type is '{}'; it must be {}, {} or {}",
      fields.origin(),
      options.problem_type.value_or(""),
      kRegression,
      kSingleLabel,
      kMultiLabel);
  return options;
}

at::Tensor classifier_loss(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const ClassifierOptions& options) {
  const std::string problem = options.problem_type.value_or(
      options.labels == 1                        ? kRegression
      : at::isFloatingType(labels.scalar_type()) ? kMultiLabel
                                                 : kSingleLabel);
  if (problem == kRegression) {
    return at::mse_loss(
        logits.squeeze(-1),
        labels.to(logits.scalar_type()).view_as(logits.squeeze(-1)));
  }
  if (problem == kMultiLabel) {
    return at::binary_cross_entropy_with_logits(logits, labels);
  }
  if (at::isFloatingType(labels.scalar_type())) {
    return at::cross_entropy_loss(logits.to(at::kFloat), labels.to(at::kFloat));
  }
  return cross_entropy(logits, labels.flatten());
}

void add_answers(
    const ModelInput& input,
    const at::Tensor& logits,
    ModelOutput& output) {
  const at::Tensor start = logits.select(-1, 0);
  const at::Tensor end = logits.select(-1, 1);
  output.others["start_logits"] = start;
  output.others["end_logits"] = end;
  const auto from = input.others.find("start_positions");
  const auto to = input.others.find("end_positions");
  if (from != input.others.end() && to != input.others.end()) {
    output.loss =
        (place_loss(start, from->second) + place_loss(end, to->second)) / 2;
  }
}

at::Tensor last_token_places(
    const at::Tensor& input_ids,
    const std::optional<int64_t>& padding_id) {
  const int64_t length = input_ids.size(1);
  if (!padding_id) {
    TESSERA_CHECK(
        input_ids.size(0) == 1,
        "classifying {} rows needs a padding token: set pad_token_id in config.json",
        input_ids.size(0));
    return torch::full({1}, length - 1, input_ids.options().dtype(at::kLong));
  }
  const at::Tensor places =
      torch::arange(length, input_ids.options().dtype(at::kLong));
  return (input_ids.ne(*padding_id) * places).argmax(-1);
}

} // namespace tessera::zoo
