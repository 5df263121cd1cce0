// SPDX-License-Identifier: Apache-2.0
#pragma once
// The training loop: schedule, accumulation, clipping, metrics and progress.

#include "tessera/engine/engine_ref.h"
#include "tessera/engine/schedule/lr_schedule.h"
#include "tessera/engine/trainer/training_task.h"
#include "tessera/runtime/comm/init.h"

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tessera {

struct BatchShare;
class ParallelRun;

struct TrainerOptions {
  int64_t epochs = 1;
  /// Stops after this many optimizer steps; 0 for all of the epochs.
  int64_t max_steps = 0;
  /// Micro-batches per optimizer step.
  int64_t accumulate = 1;
  /// Global 2-norm that gradients are clipped to; 0 does not clip.
  double clip_grad_norm = 0;
  /// Of the rate that the engine has at the start; total_steps is filled in.
  LrScheduleOptions schedule;
  /// Optimizer steps between lines of the log, whose values are means over the
  /// steps since the line before. Only then does the host wait for the device's
  /// losses. A line is also written before a checkpoint.
  int64_t log_every = 1;
  /// Whether lines say what the time of a step went to; see StepSplit.
  bool step_timing = true;
  /// Optimizer steps between checkpoints; 0 saves none.
  int64_t save_every = 0;
  /// Checkpoints that are kept; 0 keeps all.
  int keep_last = 2;
  /// Goes on from the latest checkpoint of the run folder, if there is one: as
  /// if the run had not been interrupted. With other ranks or batches it takes
  /// up the samples where it was, and makes as many steps of those that are
  /// left as it takes now.
  bool resume = false;
  /// Who sees which batch, where ranks divide a model; with pipeline stages the
  /// task is a PipelineTask. Not owned. Null: each rank has all of the model
  /// and batches of its own.
  ParallelRun* parallel = nullptr;
  /// What is drawn in forwards is a function of this seed, the step, the
  /// micro-batch and the layer, under any layout of ranks ([Note: random
  /// keys]). None: whatever the default generators give.
  std::optional<uint64_t> random_seed;
  /// Where rank 0 writes what TrainingLog says, and all ranks their part of
  /// checkpoints/; exists.
  std::filesystem::path run_folder;
};

struct TrainingSummary {
  int64_t steps = 0; ///< of the whole run, those before a resumption too
  int64_t new_steps = 0; ///< since the start or resumption
  double last_loss = 0; ///< mean over all ranks
  double seconds = 0;
  double tokens_per_s = 0; ///< over all ranks, since the start or resumption
};

/// Which batches a rank sees.
BatchShare batch_share(const World& world, const TrainerOptions& options);

/// Optimizer steps of a run.
int64_t total_steps_of(const TrainerOptions& options, const TrainingTask& task);

/// Trains and reports. Collective. Rank 0 shows progress on standard output and
/// writes the files of TrainingLog.
/// @throws tessera::Error when a loss is not finite, naming the step.
TrainingSummary train(
    World& world,
    EngineRef engine,
    TrainingTask& task,
    const TrainerOptions& options);

} // namespace tessera
