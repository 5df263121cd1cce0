// SPDX-License-Identifier: Apache-2.0
#pragma once
// Losses and times of a training run, on their way to its log.

#include "tessera/engine/trainer/loss_meter.h"
#include "tessera/engine/trainer/skipped_steps.h"
#include "tessera/engine/trainer/step_timing.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/engine/trainer/training_log.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

namespace tessera {

/// Watches the steps of one run on all ranks; rank 0 keeps the log.
class RunMonitor {
 public:
  /// All references outlive the monitor.
  /// @param done_steps those of before a resumption.
  RunMonitor(
      const World& world,
      EngineRef engine,
      const TrainerOptions& options,
      int64_t total_steps,
      int64_t done_steps);

  /// Phases of a step; nothing with TrainerOptions::step_timing off.
  void begin(StepPhase phase);
  void end();

  void add(const MicroBatch& batch);
  /// What a pipeline's stage returned for a step's micro-batches.
  /// @param tokens of all of them.
  void add(const std::vector<at::Tensor>& losses, int64_t tokens);

  /// Whether the log gets a line at the end of `step`.
  bool reports(int64_t step) const;

  /// Reads the losses up to `step`, inclusive. Collective; blocks.
  /// @throws tessera::Error when their mean is not finite.
  void read_losses(int64_t step);

  /// Writes the line of steps whose losses were read last, and begins the next.
  void write(int64_t step, double epoch, double lr, double grad_norm);

  /// Warns, now and then, that the step was not made: gradients overflowed.
  void tell_skipped(int64_t step);

  /// What follows is part of no step, until the next one begins.
  void restart_clock() {
    interval_start_ = Clock::now();
  }

  /// Ends the log.
  TrainingSummary finish(int64_t steps);

 private:
  using Clock = std::chrono::steady_clock;

  const World& world_;
  EngineRef engine_;
  const TrainerOptions& options_;
  int64_t total_steps_;
  BatchShare batches_;
  bool tells_loss_; ///< for the ranks that see the same batch
  c10::Device device_; ///< of the parameters
  std::optional<StepTiming> timing_;
  std::unique_ptr<TrainingLog> log_; ///< null but on rank 0
  SkippedSteps skipped_;
  LossMeter losses_;
  LossMeter::Totals totals_; ///< read last
  double tokens_ = 0; ///< since the start or resumption
  int64_t done_steps_; ///< before this run or its resumption
  int64_t written_steps_; ///< in the log
  Clock::time_point start_ = Clock::now();
  Clock::time_point interval_start_ = start_;
};

} // namespace tessera
