// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GeneratedMetric` is a metric of generated texts that a configuration names.

#include "tessera/text/metrics/rouge.h"

#include <string>
#include <vector>

namespace tessera::tasks {

/// A text that a model has written, and what it was to write.
struct GeneratedPair {
  std::string text;
  std::string reference;
};

struct GeneratedMetric {
  const char* name; ///< "rouge_l", of `data.metric`
  const char* title; ///< "ROUGE-L", for people
  /// @param compared by the ROUGE metrics.
  double (*value)(
      const std::vector<GeneratedPair>& pairs,
      text::RougeWords compared);
  bool is_share = true; ///< shown as a percentage
};

/// All metrics, by the names that `data.metric` takes.
const std::vector<GeneratedMetric>& generated_metrics();

/// The metrics of these names, in their order.
/// @throws tessera::Error naming data.metric if one does not exist.
std::vector<GeneratedMetric> generated_metrics_for(
    const std::vector<std::string>& names);

} // namespace tessera::tasks
