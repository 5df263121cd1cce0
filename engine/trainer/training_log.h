// SPDX-License-Identifier: Apache-2.0
#pragma once
// What rank 0 shows and keeps of a training run.

#include "tessera/engine/report/event_file.h"
#include "tessera/engine/report/json_lines.h"
#include "tessera/engine/report/progress_line.h"
#include "tessera/engine/trainer/step_metrics.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

/// Progress on standard output and, in a folder: metrics.jsonl, an event file
/// for TensorBoard and, at the end, loss.svg and report.html.
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

  /// Ends the progress line, draws the loss curve and writes the report.
  void finish();

 private:
  std::filesystem::path folder_;
  int64_t total_steps_;
  std::vector<StepMetrics> lines_; ///< with those of before a resumption
  JsonLinesWriter metrics_;
  EventFileWriter events_;
  ProgressLine progress_;
};

} // namespace tessera
