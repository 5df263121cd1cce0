// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StepMetrics` holds one line of a training log.

#include "tessera/engine/trainer/step_timing.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::engine {

/// Begins the names of values of held-out data.
inline constexpr std::string_view kHeldoutPrefix = "heldout_";

/// Work of a step beside what its devices could do.
struct StepWork {
  /// Model FLOPs of a step, all ranks: products of forward and backward, not
  /// what is computed again; see runtime/profile/flop_counter.h.
  double flops = 0;
  double peak_flops_per_s = 0; ///< of all ranks
  /// The peak was measured, and is not a data sheet's.
  bool is_measured = false;

  /// Model FLOPs utilization: the share of the peak in a step of `seconds`.
  double utilization(double seconds) const {
    return flops / (seconds * peak_flops_per_s);
  }
};

/// One line of the log: means over the steps since the previous line; `step` is
/// the last of them.
struct StepMetrics {
  int64_t step = 0; ///< 1 for the first
  double epoch = 0; ///< epochs done, e.g. 0.25
  double loss = 0; ///< mean over all ranks
  double lr = 0; ///< of the last step
  /// Norm of the last step, before clipping; unset if gradients are not
  /// clipped, infinite if the step was skipped (null in the file: JSON has no
  /// infinity).
  std::optional<double> grad_norm;
  double tokens = 0; ///< since the last line, all ranks, padding included
  double non_padding_tokens = 0; ///< of them
  double tokens_per_s = 0; ///< over all ranks
  int64_t memory_bytes = 0; ///< peak of rank 0 on its device
  double step_seconds = 0; ///< of one step
  std::optional<StepWork> work; ///< unset if not counted
  std::optional<StepSplit> split; ///< of rank 0, per step
  /// The share of the tokens that are padding, 0 to 1.
  double padding_ratio() const {
    return tokens > 0 ? 1 - non_padding_tokens / tokens : 0;
  }
  /// Of the held-out data after the last step, such as "heldout_loss"; empty if
  /// they were not scored.
  std::vector<std::pair<std::string, double>> heldout;
};

/// The metrics as a line of metrics.jsonl.
nlohmann::ordered_json to_json(const StepMetrics& metrics);

/// The inverse of to_json(); what the line lacks keeps its default.
StepMetrics step_metrics_of(const nlohmann::ordered_json& line);

} // namespace tessera::engine
