// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ClassLabels` says what the numbers mean that a classifier predicts;
// class_values() makes them of its logits.

#include "tessera/zoo/heads/head.h"

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::tasks {

struct TrainedModel;

/// A probability of at least this is a label, where there may be several.
inline constexpr double kLikelyClass = 0.5;

struct ClassLabels {
  zoo::HeadLabels kind =
      zoo::HeadLabels::kClass; ///< kClass, kClasses or kNumbers
  std::vector<std::string> names; ///< of the classes; none of numbers
};

/// The labels of a model's classifier.
/// @throws tessera::Error if it has none.
ClassLabels class_labels_of(const TrainedModel& trained);

/// The probability of each class, or the numbers, of each row.
/// @param logits [rows, classes]
/// @throws tessera::Error if any is not finite.
std::vector<std::vector<double>> class_values(
    const at::Tensor& logits,
    zoo::HeadLabels labels);

} // namespace tessera::tasks
