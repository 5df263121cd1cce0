// SPDX-License-Identifier: Apache-2.0
#pragma once
// `train()` is the training loop: schedule, accumulation, clipping, metrics and
// progress.

#include "tessera/engine/engine.h"
#include "tessera/engine/schedule/lr_schedule.h"
#include "tessera/engine/trainer/metric_sink.h"
#include "tessera/engine/trainer/training_task.h"
#include "tessera/runtime/comm/init.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

struct BatchShare;
class ParallelRun;
class TrainingHook; // engine/trainer/training_hook.h

/// What follows a loss that is not finite, a spike, or a gradient that is not
/// finite (EngineOptions::on_nonfinite).
enum class OnBadLoss {
  kStop, ///< the run ends with an error
  /// The run returns to its newest checkpoint, and leaves out the samples since
  /// the last good loss.
  kRollBack,
  /// The run ends with the step before; with update_in_backward, the weights
  /// have that of the bad loss too.
  kEnd,
};

struct TrainerOptions {
  int64_t epochs = 1;
  /// Stops after this many optimizer steps; 0: after all epochs.
  int64_t max_steps = 0;
  /// Micro-batches per optimizer step.
  int64_t accumulate = 1;
  /// Limit of the global 2-norm of gradients; 0 does not clip.
  double clip_grad_norm = 0;
  OnBadLoss on_bad_loss = OnBadLoss::kStop;
  /// A loss is bad, too, if it is above this times the median of up to 64 lines
  /// of the log before it (at least 8); 0: only if it is not finite.
  double loss_spike = 0;
  /// Schedule of the engine's learning rate at the start; train() sets
  /// total_steps.
  LrScheduleOptions schedule;
  /// Optimizer steps between lines of the log, whose values are means over the
  /// steps since the previous line. The host waits for the losses on the device
  /// only then. A line is also written before a checkpoint.
  int64_t log_every = 1;
  /// Whether lines contain the split of the time of steps; see StepSplit.
  bool step_timing = true;
  /// Whether lines contain the model's floating-point operations and their
  /// share of the devices' peak; see StepWork.
  bool count_flops = true;
  /// Steps that are profiled, see StepProfiler; 0: none. Files: ProfiledSteps.
  int64_t profile_steps = 0;
  /// The first of them, from 1 on: after the steps in which memory is allocated
  /// and the plan of pages is made.
  int64_t profile_first = 10;
  /// Optimizer steps between checkpoints; 0: steps do not cause any.
  int64_t save_every = 0;
  /// Minutes between checkpoints, by the clock of rank 0; 0: time does not
  /// cause any.
  double save_minutes = 15;
  /// Whether a checkpoint is saved after the last step.
  bool save_last = true;
  /// Number of checkpoints that are kept; 0 keeps all.
  int keep_last = 2;
  /// Optimizer steps between scores of the held-out data, which are also scored
  /// after the last step; 0: they are not scored while the run trains.
  int64_t evaluate_every = 0;
  /// What makes a score the best one: a name among TaskScore::values, with or
  /// without "heldout_". Losses and perplexities are better if lower.
  std::string best_metric = "loss";
  /// The held-out data. Where a resumed run has others than its checkpoint, or
  /// another best_metric, no score of before is the best one.
  ScoredData scored_data;
  /// Whether a checkpoint is saved after each score that is better than those
  /// before; the last of them is kept beside keep_last, as "best".
  bool keep_best = false;
  /// Whether the run ends with the weights of the best checkpoint; it then
  /// keeps one.
  bool export_best = false;
  /// Ends the run after so many scores without a better one; 0: it does not.
  int64_t early_stop = 0;
  /// Whether held-out data are scored with the averages of the weights
  /// (OptimizerOptions::ema_decay) in their place.
  bool ema_evaluate = false;
  /// Resumes from the latest checkpoint of the run folder, if there is one, as
  /// if the run had not been interrupted. With other ranks or batch sizes it
  /// resumes at the same sample, and makes as many steps of the remaining
  /// samples as they now give.
  bool resume = false;
  /// Resumes from this checkpoint instead of the latest: its name in the run
  /// folder's checkpoints/, e.g. "step-000100", or a path. Later checkpoints
  /// there are renamed to "replaced-step-N". Empty: the latest.
  std::string resume_from;
  /// Whether a resumed run starts at the first sample of its data, because they
  /// are not those of the checkpoint. It then makes `epochs` over them.
  bool restart_data = false;
  /// Saved with checkpoints, e.g. the configuration of the run and the identity
  /// of its data, to be compared with those of a run that resumes (see
  /// saved_description()); may be null.
  nlohmann::json description;
  /// Polled after each backward, and between batches of held-out data: with a
  /// result other than 0 on any rank, all ranks finish the step, without a
  /// score, save a checkpoint and end. May be empty.
  std::function<int()> stop_signal;
  /// Called at fixed points of the run, in this order; not owned. The same on
  /// all ranks.
  std::vector<TrainingHook*> hooks;
  /// The mesh and the pipeline, if ranks divide the model; with pipeline stages
  /// the task must be a PipelineTask. Not owned. Null: each rank has the whole
  /// model and batches of its own.
  ParallelRun* parallel = nullptr;
  /// Makes the random numbers of forwards a function of this seed, the step,
  /// the micro-batch and the layer, under any layout ([Note: random keys]).
  /// Nothing: the default generators are used.
  std::optional<uint64_t> random_seed;
  /// Where the lines of the log go besides metrics.jsonl: names of
  /// make_metric_sink(); "jsonl" may be among them.
  std::vector<std::string> metrics{"jsonl", "tensorboard"};
  /// The same, of the caller's own; rank 0 uses them.
  std::vector<std::shared_ptr<MetricSink>> sinks;
  /// What the report says of the run besides its metrics, as names and values:
  /// the device, the number of ranks, the data.
  std::vector<std::pair<std::string, std::string>> facts;
  /// Folder to which rank 0 writes the files of TrainingLog and all ranks write
  /// their part of checkpoints/; must exist.
  std::filesystem::path run_folder;
};

/// The fields of the section `training`, without the schedule.
void visit_fields(runtime::OptionFields& fields, TrainerOptions& options);

struct TrainingSummary {
  int64_t steps = 0; ///< of the whole run, also before it was resumed
  int64_t total_steps = 0; ///< more than `steps` if the run was stopped
  /// The largest result of TrainerOptions::stop_signal on any rank, if it ended
  /// the run; else 0.
  int stop_signal = 0;
  bool stopped_early = false; ///< because of TrainerOptions::early_stop
  /// Of the best score; 0: there is none.
  int64_t best_step = 0;
  std::string best_text; ///< "heldout_loss 1.25 of step 300"
  bool has_best_weights = false; ///< the engine has those of best_step
  /// The checkpoint of the last step; empty if there is none, because
  /// TrainerOptions::save_last is false or it could not be written.
  std::filesystem::path checkpoint;
  int64_t new_steps = 0; ///< since the run was started or resumed
  int64_t skipped_steps = 0; ///< of them, whose scaled gradients overflowed
  double last_loss = 0; ///< mean over all ranks
  double seconds = 0;
  double tokens_per_s = 0; ///< over all ranks, of new_steps
  /// Of the weights that the engine has, if they were scored after the last
  /// step (TrainerOptions::evaluate_every).
  std::optional<TaskScore> last_score;
};

/// The sinks of TrainerOptions::metrics and ::sinks.
/// @throws tessera::Error on a name that there is not.
std::vector<std::shared_ptr<MetricSink>> metric_sinks(
    const TrainerOptions& options);

/// Gives a line to the sinks of a run that has ended, such as scores of its
/// last step. Rank 0 only. @throws tessera::Error if one fails.
void add_final_metrics(
    const TrainerOptions& options,
    const nlohmann::ordered_json& line);

/// The share of the batches that a rank sees.
BatchShare batch_share(const World& world, const TrainerOptions& options);

/// The number of optimizer steps of a run.
int64_t total_steps_of(const TrainerOptions& options, const TrainingTask& task);

/// Trains `engine` on `task`. Rank 0 shows progress on standard output and
/// writes the files of TrainingLog. A checkpoint or a log that cannot be
/// written is a warning, and training continues. Collective.
/// @throws tessera::Error if a loss is bad, naming the step, unless the run
/// rolls
///   back.
TrainingSummary train(
    World& world,
    Engine& engine,
    TrainingTask& task,
    const TrainerOptions& options);

} // namespace tessera
