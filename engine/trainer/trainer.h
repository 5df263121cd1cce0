// SPDX-License-Identifier: Apache-2.0
#pragma once
// The training loop: schedule, accumulation, clipping, metrics and progress.

#include "tessera/engine/engine.h"
#include "tessera/engine/trainer/lr_schedule.h"
#include "tessera/engine/trainer/training_task.h"
#include "tessera/runtime/comm/init.h"

#include <cstdint>
#include <filesystem>

namespace tessera {

struct TrainerOptions {
  int64_t epochs = 1;
  /// Stops after this many optimizer steps; 0 for all of the epochs.
  int64_t max_steps = 0;
  /// Micro-batches per optimizer step.
  int64_t accumulate = 1;
  /// Global 2-norm that gradients are clipped to; 0 does not clip.
  double clip_grad_norm = 0;
  /// peak_lr, warm-up and decay; total_steps is filled in.
  LrScheduleOptions schedule;
  /// Where rank 0 writes metrics.jsonl and loss.svg; exists.
  std::filesystem::path run_folder;
};

struct TrainingSummary {
  int64_t steps = 0;
  double last_loss = 0; ///< mean over all ranks
  double seconds = 0;
  double tokens_per_s = 0; ///< over all ranks
};

/// Optimizer steps of a run.
int64_t total_steps_of(const TrainerOptions& options, const TrainingTask& task);

/// Trains and reports. Collective. Rank 0 shows progress on standard output,
/// writes one line per step to metrics.jsonl and, at the end, loss.svg.
/// @throws tessera::Error when the loss is not finite, naming the step.
TrainingSummary train(
    World& world,
    Engine& engine,
    TrainingTask& task,
    const TrainerOptions& options);

} // namespace tessera
