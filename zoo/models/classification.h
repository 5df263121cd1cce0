// SPDX-License-Identifier: Apache-2.0
#pragma once
// Losses and outputs that the classifiers of all families share.

#include "tessera/zoo/models/config_fields.h"
#include "tessera/zoo/models/model.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::zoo {

/// The number and meaning of a classifier's outputs.
struct ClassifierOptions {
  int64_t labels = 2;
  /// "regression", "single_label_classification" or
  /// "multi_label_classification". Unset: regression for one label; otherwise
  /// inferred from the labels' type, multi-label for floating point.
  std::optional<std::string> problem_type;

  /// @throws Error on another problem_type.
  static ClassifierOptions from_config(const ConfigFields& fields);
};

/// The loss of a sequence classifier.
/// @param logits [B, labels]
/// @param labels [B], or [B, labels] for several labels per row; with the type
///     "single_label_classification" floats are the distribution of a row.
at::Tensor classifier_loss(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const ClassifierOptions& options);

/// Adds the results of question answering: `start_logits` and `end_logits` [B,
/// S] from logits [B, S, 2], and a loss if the input has `start_positions` and
/// `end_positions` [B]; positions outside of the sequence are ignored.
void add_answers(
    const ModelInput& input,
    const at::Tensor& logits,
    ModelOutput& output);

/// The position of each row's last token that is not padding: int64 [B].
/// Without a padding token it is the last position, and only one row is
/// allowed.
at::Tensor last_token_places(
    const at::Tensor& input_ids,
    const std::optional<int64_t>& padding_id);

} // namespace tessera::zoo
