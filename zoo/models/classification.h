// SPDX-License-Identifier: Apache-2.0
#pragma once
// What sequence classifiers of all families share.

#include "tessera/zoo/models/config_fields.h"
#include "tessera/zoo/models/model.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::zoo {

/// What a classifier's numbers mean.
struct ClassifierOptions {
  int64_t labels = 2;
  /// "regression", "single_label_classification" or
  /// "multi_label_classification"; unset: regression for one label; otherwise
  /// by the labels' type, multi-label for floating point.
  std::optional<std::string> problem_type;

  /// @throws Error on another problem_type.
  static ClassifierOptions from_config(const ConfigFields& fields);
};

/// @param logits [B, labels]
/// @param labels [B], or [B, labels] for several labels a row.
at::Tensor classifier_loss(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const ClassifierOptions& options);

/// Results of question answering: `start_logits` and `end_logits` [B, S] from
/// logits [B, S, 2], and a loss if the input has `start_positions` and
/// `end_positions` [B]; places outside of the text count for nothing.
void add_answers(
    const ModelInput& input,
    const at::Tensor& logits,
    ModelOutput& output);

/// The place of each row's last token that is not padding: int64 [B]. Without a
/// padding token it is the last one, and there may be one row only.
at::Tensor last_token_places(
    const at::Tensor& input_ids,
    const std::optional<int64_t>& padding_id);

} // namespace tessera::zoo
