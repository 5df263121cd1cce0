// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TrainingLog` shows and records a training run on rank 0.

#include "tessera/engine/report/json_lines.h"
#include "tessera/engine/report/progress_line.h"
#include "tessera/engine/trainer/metric_sink.h"
#include "tessera/engine/trainer/run_report.h"
#include "tessera/engine/trainer/step_metrics.h"
#include "tessera/runtime/core/log.h"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::engine {

/// Shows progress on standard output, writes metrics.jsonl to a folder and, as
/// the run goes and at its end, loss.svg and report.html, and gives all lines
/// to sinks. Once it is constructed, a file that cannot be written, e.g. on a
/// full disk, is one warning and lacks what could not be written.
class TrainingLog {
 public:
  /// @param resumed_step keeps lines up to this step and drops later ones,
  ///   whose steps will be repeated; 0 starts a new log.
  /// @param facts see run_report().
  TrainingLog(
      const std::filesystem::path& folder,
      int64_t total_steps,
      int64_t resumed_step = 0,
      RunFacts facts = {},
      std::vector<std::shared_ptr<MetricSink>> sinks = {});

  void add(const StepMetrics& metrics);

  /// Logs a line without disturbing the progress line.
  void log_text(const std::string& text, LogLevel level);

  /// Ends the progress line, draws the loss curve and writes the report.
  void finish();

 private:
  /// Calls `write`; an error is shown if it is the first one.
  void try_to(const std::function<void()>& write);

  void write_report();

  std::filesystem::path folder_;
  int64_t total_steps_;
  RunFacts facts_; ///< for the report
  std::vector<StepMetrics> lines_; ///< also from before the run was resumed
  JsonLinesWriter metrics_;
  std::vector<std::shared_ptr<MetricSink>> sinks_;
  ProgressLine progress_;
  bool has_warned_ = false;
  std::chrono::steady_clock::time_point next_report_{}; ///< when it is due
};

} // namespace tessera::engine
