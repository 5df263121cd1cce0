// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is known of some steps of a training run.

#include "tessera/engine/trainer/step_timing.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>

namespace tessera {

/// A line of the log: means over the steps since the line before, `step` being
/// the last of them.
struct StepMetrics {
  int64_t step = 0; ///< 1 for the first
  double epoch = 0; ///< epochs done, e.g. 0.25
  double loss = 0; ///< mean over all ranks
  double lr = 0; ///< of the last step
  /// Of the last step, before clipping; 0 when not clipped, infinite when the
  /// step was skipped (null in the file: JSON has no infinity).
  double grad_norm = 0;
  double tokens = 0; ///< since the line before, over all ranks
  double tokens_per_s = 0; ///< over all ranks
  int64_t memory_bytes = 0; ///< the most that rank 0 has used on its device
  double step_seconds = 0; ///< of one step
  std::optional<StepSplit> split; ///< of rank 0, per step
};

/// A line of metrics.jsonl.
nlohmann::ordered_json to_json(const StepMetrics& metrics);

/// Undoes to_json(); what a line does not have keeps its default.
StepMetrics step_metrics_of(const nlohmann::ordered_json& line);

} // namespace tessera
