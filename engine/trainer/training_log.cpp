// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/training_log.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"

#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <iostream>
#include <utility>

namespace tessera::engine {

namespace {

/// Between reports of a run that goes on.
constexpr std::chrono::seconds kReportInterval{30};

ProgressLineOptions progress_options() {
  ProgressLineOptions options;
  // The launcher passes the width of the terminal to which it forwards the
  // line.
  const char* passed = std::getenv("TESSERA_TERMINAL_COLUMNS");
  const int columns = passed ? std::atoi(passed) : 0;
  options.is_terminal = columns > 0 || ::isatty(STDOUT_FILENO) == 1;
  options.columns = [columns] {
    return columns > 0 ? columns : terminal_columns(STDOUT_FILENO);
  };
  return options;
}

/// Truncates metrics.jsonl after `last_step`.
/// @return the lines that remain.
std::vector<StepMetrics> keep_lines(
    const std::filesystem::path& folder,
    int64_t last_step) {
  if (last_step == 0) {
    return {};
  }
  std::vector<StepMetrics> lines = read_metrics(folder);
  std::erase_if(
      lines, [&](const StepMetrics& line) { return line.step > last_step; });
  std::string kept;
  for (const StepMetrics& line : lines) {
    kept += to_json(line).dump() + "\n";
  }
  runtime::write_file_atomically(folder / "metrics.jsonl", kept);
  return lines;
}

} // namespace

TrainingLog::TrainingLog(
    const std::filesystem::path& folder,
    int64_t total_steps,
    int64_t resumed_step,
    RunFacts facts,
    std::vector<std::shared_ptr<MetricSink>> sinks)
    : folder_(folder),
      total_steps_(total_steps),
      facts_(std::move(facts)),
      lines_(keep_lines(folder, resumed_step)),
      metrics_(
          folder / "metrics.jsonl",
          resumed_step > 0 ? JsonLinesWriter::Mode::kAppend
                           : JsonLinesWriter::Mode::kNew),
      sinks_(std::move(sinks)),
      progress_(std::cout, progress_options()) {
  const MetricRun run = metric_run_of(folder, lines_);
  for (const auto& sink : sinks_) {
    sink->begin(run);
  }
}

void TrainingLog::add(const StepMetrics& metrics) {
  const nlohmann::ordered_json line = to_json(metrics);
  try_to([&] { metrics_.write(line); });
  for (const auto& sink : sinks_) {
    try_to([&] { sink->write(line); });
  }
  lines_.push_back(metrics);
  Progress progress;
  progress.step = metrics.step;
  progress.total_steps = total_steps_;
  progress.loss = metrics.loss;
  progress.learning_rate = metrics.lr;
  progress.grad_norm = metrics.grad_norm;
  progress.tokens_per_s = metrics.tokens_per_s;
  progress.padding_ratio = metrics.padding_ratio();
  if (metrics.work) {
    progress.utilization = metrics.work->utilization(metrics.step_seconds);
    progress.has_measured_peak = metrics.work->is_measured;
  }
  progress.memory_bytes = metrics.memory_bytes;
  progress_.update(progress);
  if (const auto now = std::chrono::steady_clock::now(); now >= next_report_) {
    write_report();
    next_report_ = std::chrono::steady_clock::now() + kReportInterval;
  }
}

void TrainingLog::log_text(const std::string& text, LogLevel level) {
  progress_.clear();
  log_line(level, text);
}

void TrainingLog::finish() {
  progress_.finish();
  for (const auto& sink : sinks_) {
    try_to([&] { sink->finish(); });
  }
  write_report();
}

void TrainingLog::write_report() {
  try_to([&] { write_run_report(folder_, lines_, facts_); });
}

void TrainingLog::try_to(const std::function<void()>& write) {
  try {
    write();
  } catch (const Error& error) {
    if (!has_warned_) {
      has_warned_ = true;
      log_text(
          formatted(
              "{}. Training continues; its log and report lack what cannot be written.",
              error.what()),
          LogLevel::kWarning);
    }
  }
}

} // namespace tessera::engine
