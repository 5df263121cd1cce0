// SPDX-License-Identifier: Apache-2.0
#pragma once
// `train()` is the training loop: schedule, accumulation, clipping, metrics and
// progress.

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
  /// Stops after this many optimizer steps; 0: after all epochs.
  int64_t max_steps = 0;
  /// Micro-batches per optimizer step.
  int64_t accumulate = 1;
  /// Limit of the global 2-norm of gradients; 0 does not clip.
  double clip_grad_norm = 0;
  /// Schedule of the engine's learning rate at the start; train() sets
  /// total_steps.
  LrScheduleOptions schedule;
  /// Optimizer steps between lines of the log, whose values are means over the
  /// steps since the previous line. The host waits for the losses on the device
  /// only then. A line is also written before a checkpoint.
  int64_t log_every = 1;
  /// Whether lines contain the split of the time of steps; see StepSplit.
  bool step_timing = true;
  /// Optimizer steps between checkpoints; 0 saves none.
  int64_t save_every = 0;
  /// Number of checkpoints that are kept; 0 keeps all.
  int keep_last = 2;
  /// Resumes from the latest checkpoint of the run folder, if there is one, as
  /// if the run had not been interrupted. With other ranks or batch sizes it
  /// resumes at the same sample, and makes as many steps of the remaining
  /// samples as they now give.
  bool resume = false;
  /// The mesh and the pipeline, if ranks divide the model; with pipeline stages
  /// the task must be a PipelineTask. Not owned. Null: each rank has the whole
  /// model and batches of its own.
  ParallelRun* parallel = nullptr;
  /// Makes the random numbers of forwards a function of this seed, the step,
  /// the micro-batch and the layer, under any layout ([Note: random keys]).
  /// Nothing: the default generators are used.
  std::optional<uint64_t> random_seed;
  /// Folder to which rank 0 writes the files of TrainingLog and all ranks write
  /// their part of checkpoints/; must exist.
  std::filesystem::path run_folder;
};

struct TrainingSummary {
  int64_t steps = 0; ///< of the whole run, also before it was resumed
  int64_t new_steps = 0; ///< since the run was started or resumed
  double last_loss = 0; ///< mean over all ranks
  double seconds = 0;
  double tokens_per_s = 0; ///< over all ranks, of new_steps
};

/// The share of the batches that a rank sees.
BatchShare batch_share(const World& world, const TrainerOptions& options);

/// The number of optimizer steps of a run.
int64_t total_steps_of(const TrainerOptions& options, const TrainingTask& task);

/// Trains `engine` on `task`. Rank 0 shows progress on standard output and
/// writes the files of TrainingLog. Collective.
/// @throws tessera::Error if a loss is not finite, naming the step.
TrainingSummary train(
    World& world,
    EngineRef engine,
    TrainingTask& task,
    const TrainerOptions& options);

} // namespace tessera
