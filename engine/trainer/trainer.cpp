// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/trainer.h"
#include "tessera/engine/parallel_run.h"

#include "tessera/engine/schedule/lr_scheduler.h"
#include "tessera/engine/trainer/best_score.h"
#include "tessera/engine/trainer/micro_batches.h"
#include "tessera/engine/trainer/run_checkpoints.h"
#include "tessera/engine/trainer/run_monitor.h"
#include "tessera/engine/trainer/run_position.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <vector>

namespace tessera {

namespace {

/// Steps of a run that has come this far, with the batches that it has now.
int64_t total_steps_from(
    const engine::RunPosition& position,
    const TrainerOptions& options,
    int64_t batches_per_epoch) {
  const int64_t left = options.epochs * batches_per_epoch - position.batch;
  const int64_t all = position.steps + left / options.accumulate;
  return options.max_steps > 0 ? std::min(all, options.max_steps) : all;
}

/// The checkpoint that the run resumes from, if it does.
std::optional<std::filesystem::path> checkpoint_of(
    const World& world,
    const TrainerOptions& options) {
  auto found =
      engine::checkpoint_to_resume(options.run_folder, options.resume_from);
  TESSERA_CHECK(
      options.resume || !found,
      "training: {} contains checkpoints of an earlier run. Resume from them with training.resume=true, choose another output.folder, or remove this one.",
      options.run_folder.string());
  if (options.resume && !found && world.rank() == 0) {
    log_warning(
        "training.resume is true, but there is no checkpoint in {}: starting from the beginning",
        engine::checkpoints_of(options.run_folder).string());
  }
  return found;
}

/// A pipeline with one micro-batch at a time works on one pipeline stage at a
/// time.
void warn_of_bubbles(const World& world, const TrainerOptions& options) {
  const int stages =
      options.parallel != nullptr
          ? options.parallel->mesh().size(ParallelGroup::kPipeline)
          : 1;
  if (stages > 1 && options.accumulate == 1 && world.rank() == 0) {
    log_warning(
        "training.accumulate is 1, so each of the {} pipeline stages is idle for {} % of a step; raise it to about {} and lower training.batch_size accordingly.",
        stages,
        100 * (stages - 1) / stages,
        4 * stages);
  }
}

/// A warm-up that is longer than the run is mostly a mistake.
void warn_of_warmup(const World& world, const LrScheduleOptions& schedule) {
  if (schedule.warmup_steps >= schedule.total_steps && world.rank() == 0) {
    log_warning(
        "the learning rate does not reach its peak: the warm-up has {} steps (warmup_steps), and the run {}.",
        schedule.warmup_steps,
        schedule.total_steps);
  }
}

} // namespace

BatchShare batch_share(const World& world, const TrainerOptions& options) {
  return options.parallel != nullptr ? options.parallel->batches()
                                     : BatchShare{world.rank(), world.size()};
}

int64_t total_steps_of(
    const TrainerOptions& options,
    const TrainingTask& task) {
  return total_steps_from(
      {task.batches_per_epoch(), 1}, options, task.batches_per_epoch());
}

TrainingSummary train(
    World& world,
    Engine& engine,
    TrainingTask& task,
    const TrainerOptions& options) {
  const int64_t batches = task.batches_per_epoch();
  int64_t total_steps = total_steps_of(options, task);
  TESSERA_CHECK(
      total_steps > 0,
      "training: {} epoch(s) of {} batches per rank are too few for one optimizer step of {} micro-batches. Use more data or epochs, or smaller batches.",
      options.epochs,
      batches,
      options.accumulate);
  LrScheduleOptions schedule = options.schedule;
  schedule.total_steps = total_steps;
  LrScheduler scheduler(engine.learning_rate(), schedule);
  engine::RunPosition progress(
      batches, task.batch_size() * batch_share(world, options).count);
  engine::BestScore best(options.best_metric);
  engine::RunCheckpoints checkpoints(
      world, engine, options, {&scheduler, &progress, &best});
  if (const auto from = checkpoint_of(world, options)) {
    checkpoints.load(*from);
    if (options.restart_data) {
      progress.batch = 0;
    }
    // Other ranks or batch sizes give another number of remaining steps.
    total_steps = total_steps_from(progress, options, batches);
    scheduler.set_total_steps(total_steps);
    if (world.rank() == 0) {
      log_info(
          "resuming from step {} of {} ('{}')",
          progress.steps,
          total_steps,
          from->string());
      if (progress.repeated_samples() > 0 && !options.restart_data) {
        log_info(
            "{} samples are repeated: the checkpoint is in the middle of a batch of the current size",
            progress.repeated_samples());
      }
    }
    if (progress.batch % batches != 0) {
      task.begin_epoch(progress.batch / batches);
    }
  }

  warn_of_bubbles(world, options);
  warn_of_warmup(world, schedule);
  engine::RunMonitor monitor(
      world, engine, options, total_steps, progress.steps);
  engine::MicroBatches micro_batches(engine, task, world, options, monitor);
  int64_t& batch = progress.batch;
  TrainingSummary summary;
  const bool keeps_best = options.keep_best || options.export_best;
  bool is_end = progress.steps >= total_steps;
  while (!is_end) {
    scheduler.step(engine); // backward may update already
    micro_batches.run(progress.steps, batch);
    const int64_t step = progress.steps + 1;
    monitor.end();
    const auto end = checkpoints.decide(step, step == total_steps);
    const bool scores =
        options.evaluate_every > 0 && step % options.evaluate_every == 0;
    const bool reports = monitor.reports(step, end.saves || scores);
    if (reports) {
      // Before the step, so that a loss that is not finite does not reach the
      // weights.
      monitor.read_losses(step);
    }
    monitor.begin(engine::StepPhase::kOptimizer);
    std::optional<DeferredScalar> grad_norm;
    if (options.clip_grad_norm > 0) {
      grad_norm = engine.clip_grad_norm(options.clip_grad_norm);
    }
    const bool is_skipped = !engine.step();
    if (!is_skipped) {
      task.after_step(step, total_steps);
    }
    monitor.end();

    progress.steps = step;
    if (is_skipped) {
      monitor.tell_skipped(step);
    }
    std::optional<TaskScore> score;
    bool is_best = false;
    if (scores) {
      score = monitor.score(task, step);
      is_best = best.add(*score, step);
    }
    summary.stopped_early = scores && options.early_stop > 0 &&
                            best.since_best() >= options.early_stop;
    is_end =
        step == total_steps || end.stop_signal != 0 || summary.stopped_early;
    if (reports) {
      monitor.write(
          step,
          static_cast<double>(batch) / static_cast<double>(batches),
          engine.learning_rate(),
          is_skipped ? std::optional(std::numeric_limits<double>::infinity())
                     : std::optional<double>(grad_norm),
          score);
    }
    const bool saves =
        end.saves || (is_best && keeps_best) || (is_end && options.save_last);
    if (const auto saved = checkpoints.begun_save(saves || is_end)) {
      monitor.tell_saved(saved->text, !saved->path.empty());
    }
    if (saves && engine.saves_in_background() && !is_end) {
      checkpoints.begin_save(step, is_best && keeps_best);
      monitor.skip_time();
    } else if (saves) {
      const auto saved = checkpoints.save(step, is_best && keeps_best);
      if (is_end) {
        summary.checkpoint = saved.path;
      }
      monitor.tell_saved(saved.text, !saved.path.empty());
      monitor.skip_time();
    }
    summary.stop_signal = end.stop_signal;
  }
  summary.best_step = best.step();
  summary.best_text = best.text();
  summary.has_best_weights = best.step() > 0 && best.step() == progress.steps;
  if (options.export_best && summary.stop_signal == 0 && best.step() > 0 &&
      !summary.has_best_weights) {
    summary.has_best_weights = checkpoints.load_best(best.step());
  }
  // Restored for further training by the caller.
  engine.set_learning_rate(scheduler.peak_learning_rate());
  summary.total_steps = total_steps;
  monitor.finish(progress.steps, summary);
  return summary;
}

} // namespace tessera
