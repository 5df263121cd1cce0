// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/training_log.h"

#include "tessera/runtime/io/atomic_file.h"

#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <iostream>

namespace tessera {

namespace {

ProgressLineOptions progress_options() {
  ProgressLineOptions options;
  // The launcher says how wide the terminal is that it passes the line on to.
  const char* passed = std::getenv("TESSERA_TERMINAL_COLUMNS");
  const int columns = passed ? std::atoi(passed) : 0;
  options.is_terminal = columns > 0 || ::isatty(STDOUT_FILENO) == 1;
  options.columns = [columns] {
    return columns > 0 ? columns : terminal_columns(STDOUT_FILENO);
  };
  return options;
}

} // namespace

TrainingLog::TrainingLog(
    const std::filesystem::path& folder,
    int64_t total_steps)
    : folder_(folder),
      total_steps_(total_steps),
      metrics_(folder / "metrics.jsonl"),
      progress_(std::cout, progress_options()) {}

void TrainingLog::add(const StepMetrics& metrics) {
  metrics_.write(
      {{"step", metrics.step},
       {"epoch", metrics.epoch},
       {"loss", metrics.loss},
       {"lr", metrics.lr},
       {"grad_norm", metrics.grad_norm},
       {"tokens_per_s", metrics.tokens_per_s},
       {"memory_bytes", metrics.memory_bytes}});
  losses_.push_back({static_cast<double>(metrics.step), metrics.loss});
  Progress progress;
  progress.step = metrics.step;
  progress.total_steps = total_steps_;
  progress.loss = metrics.loss;
  progress.tokens_per_s = metrics.tokens_per_s;
  progress.memory_bytes = metrics.memory_bytes;
  progress_.update(progress);
}

void TrainingLog::finish() {
  progress_.finish();
  LinePlot plot;
  plot.title = "Training loss";
  plot.x_label = "step";
  plot.y_label = "loss";
  plot.series.push_back({"loss", losses_, /*smooth=*/true});
  write_file_atomically(folder_ / "loss.svg", to_svg(plot));
}

} // namespace tessera
