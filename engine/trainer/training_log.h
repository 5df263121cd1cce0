// SPDX-License-Identifier: Apache-2.0
#pragma once
// What rank 0 shows and keeps of a training run.

#include "tessera/engine/report/json_lines.h"
#include "tessera/engine/report/line_plot.h"
#include "tessera/engine/report/progress_line.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

struct StepMetrics {
  int64_t step = 0; ///< 1 for the first
  double epoch = 0; ///< epochs done, e.g. 0.25
  double loss = 0; ///< mean over all ranks
  double lr = 0;
  /// Before clipping; 0 when not clipped, infinite when the step was skipped
  /// (null in the file: JSON has no infinity).
  double grad_norm = 0;
  double tokens_per_s = 0; ///< over all ranks
  int64_t memory_bytes = 0; ///< the most that rank 0 has used
};

/// Progress on standard output, metrics.jsonl and loss.svg in a folder.
class TrainingLog {
 public:
  /// @param resumed_step lines up to this step are kept, later ones, of steps
  ///   that will be done again, are not; 0 begins anew.
  TrainingLog(
      const std::filesystem::path& folder,
      int64_t total_steps,
      int64_t resumed_step = 0);

  void add(const StepMetrics& metrics);

  /// A warning that does not run into the progress line.
  void say(const std::string& text);

  /// Ends the progress line and draws the loss curve.
  void finish();

 private:
  std::filesystem::path folder_;
  int64_t total_steps_;
  std::vector<PlotPoint> losses_;
  JsonLinesWriter metrics_;
  ProgressLine progress_;
};

} // namespace tessera
