// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RunMonitor` measures losses and times of a training run and writes them to
// its log.

#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/engine/trainer/loss_meter.h"
#include "tessera/engine/trainer/skipped_steps.h"
#include "tessera/engine/trainer/step_flops.h"
#include "tessera/engine/trainer/step_metrics.h"
#include "tessera/engine/trainer/step_timing.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/engine/trainer/training_log.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace tessera::engine {

/// Watches the steps of one run on all ranks; rank 0 keeps the log.
class RunMonitor {
 public:
  /// All references must outlive the monitor. Collective: ranks on CPUs measure
  /// their peaks at the same time.
  /// @param done_steps steps before the run was resumed.
  RunMonitor(
      const World& world,
      Engine& engine,
      const TrainerOptions& options,
      int64_t total_steps,
      int64_t done_steps);

  /// Mark the phases of a step; they do nothing without
  /// TrainerOptions::step_timing.
  void begin(StepPhase phase);
  void end();

  /// Surround the forward and backward of a micro-batch, or of all of a step;
  /// see StepFlops. They do nothing without TrainerOptions::count_flops.
  void begin_work(int64_t tokens);
  void end_work(int64_t tokens);

  /// @param padding of its tokens.
  void add(const MicroBatch& batch, int64_t padding);
  /// Adds what a pipeline returned for the micro-batches of a step.
  /// @param tokens of all micro-batches together.
  /// @param padding of the tokens.
  void add(
      const std::vector<at::Tensor>& losses,
      int64_t tokens,
      int64_t padding);

  /// Whether a line is logged at the end of `step`.
  bool reports(int64_t step, bool saves) const;

  /// Reads the losses up to and including `step`. Collective; blocks.
  /// @return their mean, over all ranks.
  double read_losses(int64_t step);

  /// The last step with a line.
  int64_t written_steps() const {
    return written_steps_;
  }

  /// Takes back the lines after `step`, which follow again.
  void rewind(int64_t step, int64_t total_steps);

  /// Writes a line for the steps whose losses were read last, and starts the
  /// next.
  void write(
      int64_t step,
      double epoch,
      double lr,
      std::optional<double> grad_norm,
      const std::optional<TaskScore>& score);

  /// Scores the held-out data; the time does not count as that of the step.
  /// Collective.
  /// @param stops as for TrainingTask::score().
  /// @return nothing if `stops` has returned true.
  /// @throws tessera::Error if there are no such data.
  std::optional<TaskScore> score(
      TrainingTask& task,
      int64_t step,
      const std::function<bool()>& stops);

  /// Logs from time to time that steps were skipped because gradients
  /// overflowed.
  void log_skipped(int64_t step);

  /// Logs a text.
  void log_text(const std::string& text);

  /// Logs that the run returned to a checkpoint, and why.
  void log_rolled_back(const std::string& text);

  /// Logs that a checkpoint was saved or why not.
  void log_saved(const std::string& text, bool is_saved);

  /// The time since the last step does not count as the time of steps.
  void skip_time();

  /// Ends the log.
  /// @param summary gets what was measured.
  void finish(int64_t steps, TrainingSummary& summary);

 private:
  using Clock = std::chrono::steady_clock;

  const World& world_;
  Engine& engine_;
  const TrainerOptions& options_;
  int64_t total_steps_;
  BatchShare batches_;
  bool reports_loss_; ///< one of the ranks with the same batch
  c10::Device device_; ///< of the parameters
  std::optional<StepTiming> timing_;
  std::optional<StepFlops> flops_;
  StepWork peak_; ///< without FLOPs
  std::unique_ptr<TrainingLog> log_; ///< null but on rank 0
  SkippedSteps skipped_;
  LossMeter losses_;
  LossMeter::Totals totals_; ///< read last
  double tokens_ = 0; ///< since the run was started or resumed
  int64_t done_steps_; ///< before the run was started or resumed
  int64_t written_steps_; ///< in the log
  Clock::time_point start_ = Clock::now();
  Clock::time_point interval_start_ = start_;
};

} // namespace tessera::engine
