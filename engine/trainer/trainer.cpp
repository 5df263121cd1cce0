// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/trainer.h"

#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/engine/schedule/lr_scheduler.h"
#include "tessera/engine/trainer/run_position.h"
#include "tessera/engine/trainer/skipped_steps.h"
#include "tessera/engine/trainer/training_log.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/memory/cpu_memory_counter.h"

#include <ATen/ops/tensor.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>

namespace tessera {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// What all ranks did in one step.
struct StepTotals {
  double loss = 0; ///< mean over ranks and micro-batches
  double tokens = 0;
};

StepTotals sum_over_ranks(Engine& engine, double loss, double tokens) {
  const at::Tensor sums = at::tensor({loss, tokens}, at::kDouble);
  engine.sum_over_ranks(sums);
  const auto* values = sums.const_data_ptr<double>();
  return {values[0], values[1]};
}

/// Steps of a run that has come so far, under the batches it has now.
int64_t total_steps_from(
    const RunPosition& position,
    const TrainerOptions& options,
    int64_t batches_per_epoch) {
  const int64_t left = options.epochs * batches_per_epoch - position.batch;
  const int64_t all = position.steps + left / options.accumulate;
  return options.max_steps > 0 ? std::min(all, options.max_steps) : all;
}

std::filesystem::path checkpoints_of(const TrainerOptions& options) {
  return options.run_folder / "checkpoints";
}

} // namespace

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
      "training: ",
      options.epochs,
      " epochs of ",
      batches,
      " batches a rank make no optimizer step of ",
      options.accumulate,
      " micro-batches. Give more data or epochs, or smaller batches.");
  LrScheduleOptions schedule = options.schedule;
  schedule.total_steps = total_steps;
  LrScheduler scheduler(engine.learning_rate(), schedule);
  RunPosition progress(batches, task.batch_size() * world.size());
  const std::vector<Checkpointable*> states{&scheduler, &progress};
  const bool has_checkpoints =
      !list_checkpoints(checkpoints_of(options)).empty();
  TESSERA_CHECK(
      options.resume || !has_checkpoints,
      "training: ",
      options.run_folder.string(),
      " holds checkpoints of an earlier run. Go on from them with "
      "training.resume=true, give another output.folder, or remove that one.");
  if (has_checkpoints) {
    engine.load(checkpoints_of(options), states);
    // Other ranks or batches make other steps of what is left.
    total_steps = total_steps_from(progress, options, batches);
    scheduler.set_total_steps(total_steps);
    if (world.rank() == 0) {
      log_info("going on from step ", progress.steps, " of ", total_steps);
      if (progress.repeated_samples() > 0) {
        log_info(
            progress.repeated_samples(),
            " samples are seen again: the checkpoint lies within a batch of "
            "the present size");
      }
    }
    if (progress.batch % batches != 0) {
      task.begin_epoch(progress.batch / batches);
    }
  }
  std::unique_ptr<TrainingLog> log;
  if (world.rank() == 0) {
    log = std::make_unique<TrainingLog>(
        options.run_folder, total_steps, progress.steps);
  }

  SkippedSteps skipped_steps;
  TrainingSummary summary;
  summary.steps = progress.steps;
  double all_tokens = 0;
  const auto start = Clock::now();
  int64_t& batch = progress.batch;
  while (summary.steps < total_steps) {
    const auto step_start = Clock::now();
    double loss = 0;
    double tokens = 0;
    for (int64_t micro = 0; micro < options.accumulate; ++micro, ++batch) {
      if (batch % batches == 0) {
        task.begin_epoch(batch / batches);
      }
      const MicroBatch done = task.forward(batch % batches);
      const auto parts = static_cast<double>(options.accumulate);
      engine.backward(options.accumulate == 1 ? done.loss : done.loss / parts);
      loss += done.loss.item<double>() / parts;
      tokens += static_cast<double>(done.tokens);
    }
    const StepTotals totals =
        sum_over_ranks(engine, loss / world.size(), tokens);
    TESSERA_CHECK(
        std::isfinite(totals.loss),
        "training: the loss of step ",
        summary.steps + 1,
        " is ",
        totals.loss,
        ". Lower the learning rate, clip the gradients "
        "(training.clip_grad_norm), or look at the data of this step.");
    StepMetrics metrics;
    scheduler.step(engine);
    metrics.lr = engine.learning_rate();
    if (options.clip_grad_norm > 0) {
      metrics.grad_norm = engine.clip_grad_norm(options.clip_grad_norm);
    }
    const bool is_skipped = !engine.step();

    ++summary.steps;
    progress.steps = summary.steps;
    summary.last_loss = totals.loss;
    all_tokens += totals.tokens;
    if (log) {
      if (is_skipped) {
        metrics.grad_norm = std::numeric_limits<double>::infinity();
        if (const auto line =
                skipped_steps.add(summary.steps, engine.loss_scale())) {
          log->say(*line);
        }
      }
      metrics.step = summary.steps;
      metrics.epoch = static_cast<double>(batch) / static_cast<double>(batches);
      metrics.loss = totals.loss;
      metrics.tokens_per_s = totals.tokens / seconds_since(step_start);
      metrics.memory_bytes = cpu_bytes_peak();
      log->add(metrics);
    }
    if (options.save_every > 0 && summary.steps % options.save_every == 0) {
      engine.save(checkpoints_of(options), states, options.keep_last);
    }
  }
  // As it was found, for whoever trains on.
  engine.set_learning_rate(scheduler.peak_learning_rate());
  summary.seconds = seconds_since(start);
  summary.tokens_per_s = all_tokens / summary.seconds;
  if (log) {
    log->finish();
  }
  return summary;
}

} // namespace tessera
