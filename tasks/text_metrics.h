// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TextMetric` is a metric of classified texts that a configuration names.

#include "tessera/text/metrics/class_counts.h"
#include "tessera/zoo/heads/head.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tasks {

/// A text among those of a group, scored by the second of two classes.
struct GroupedPrediction {
  double score = 0; ///< how much more likely the second class is
  bool is_wanted = false; ///< to be of the second class
  std::string candidate;
  std::vector<std::string> answers;
};

/// What was predicted for texts, and what was wanted.
struct TextPredictions {
  zoo::HeadLabels labels = zoo::HeadLabels::kClass;
  text::ClassCounts counts{0}; ///< of classes
  std::vector<double> predicted; ///< of numbers
  std::vector<double> wanted;
  /// By file and group, of texts that belong together.
  std::map<std::pair<size_t, std::string>, std::vector<GroupedPrediction>>
      groups;
};

struct TextMetric {
  const char* name; ///< "f1_macro", of `data.metric`
  const char* title; ///< "macro F1", for people
  bool is_share; ///< shown as a percentage
  std::vector<zoo::HeadLabels> of; ///< labels that it is for
  double (*value)(const TextPredictions& predictions);
  bool needs_groups = false; ///< of texts
};

/// All metrics, by the names that `data.metric` takes.
const std::vector<TextMetric>& text_metrics();

/// The metrics of these names, in their order; without names, those that are
/// usual for such labels.
/// @throws tessera::Error naming data.metric if one does not exist, or is not
///     for such labels or this number of classes.
std::vector<TextMetric> text_metrics_for(
    const std::vector<std::string>& names,
    zoo::HeadLabels labels,
    size_t classes);

} // namespace tessera::tasks
