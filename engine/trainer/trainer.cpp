// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/trainer.h"

#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/engine/schedule/lr_scheduler.h"
#include "tessera/engine/trainer/loss_meter.h"
#include "tessera/engine/trainer/step_timing.h"
#include "tessera/engine/trainer/training_log.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/memory/device_memory.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

namespace tessera {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// How far a run has come.
class RunPosition : public Checkpointable {
 public:
  int64_t steps = 0;
  int64_t batch = 0; ///< since the start of the run

  std::string name() const override {
    return "trainer";
  }
  CheckpointState save_state() const override {
    return {{{"steps", steps}, {"batch", batch}}, {}};
  }
  void load_state(const CheckpointState& state) override {
    steps = state.values.at("steps");
    batch = state.values.at("batch");
  }
};

/// Where the parameters are.
c10::Device device_of(const Engine& engine) {
  const auto& groups = engine.pager().groups();
  return groups.empty() ? c10::Device(at::kCPU)
                        : groups.front()->shard().device();
}

void check_finite(double loss, int64_t first_step, int64_t last_step) {
  const std::string steps =
      first_step == last_step
          ? "of step " + std::to_string(last_step)
          : "over steps " + std::to_string(first_step) + " to " +
                std::to_string(last_step);
  TESSERA_CHECK(
      std::isfinite(loss),
      "training: the loss ",
      steps,
      " is ",
      loss,
      ". Lower the learning rate, clip the gradients "
      "(training.clip_grad_norm), or look at the data of these steps.");
}

std::filesystem::path checkpoints_of(const TrainerOptions& options) {
  return options.run_folder / "checkpoints";
}

} // namespace

int64_t total_steps_of(
    const TrainerOptions& options,
    const TrainingTask& task) {
  const int64_t all =
      options.epochs * task.batches_per_epoch() / options.accumulate;
  return options.max_steps > 0 ? std::min(all, options.max_steps) : all;
}

TrainingSummary train(
    World& world,
    Engine& engine,
    TrainingTask& task,
    const TrainerOptions& options) {
  const int64_t batches = task.batches_per_epoch();
  const int64_t total_steps = total_steps_of(options, task);
  TESSERA_CHECK(
      total_steps > 0,
      "training: ",
      options.epochs,
      " epochs of ",
      batches,
      " batches a rank make no optimizer step of ",
      options.accumulate,
      " micro-batches. Give more data or epochs, or smaller batches.");
  TESSERA_CHECK(
      options.log_every > 0,
      "training: log_every is ",
      options.log_every,
      "; give the number of steps between lines of the log, at least 1.");
  LrScheduleOptions schedule = options.schedule;
  schedule.total_steps = total_steps;
  LrScheduler scheduler(engine.learning_rate(), schedule);
  RunPosition progress;
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
    log_info("going on from step ", progress.steps);
    if (progress.batch % batches != 0) {
      task.begin_epoch(progress.batch / batches);
    }
  }
  std::unique_ptr<TrainingLog> log;
  if (world.rank() == 0) {
    log = std::make_unique<TrainingLog>(
        options.run_folder, total_steps, progress.steps);
  }

  const c10::Device device = device_of(engine);
  std::optional<StepTiming> timing;
  if (options.step_timing) {
    timing.emplace(device, engine.transfer_waits());
  }
  const auto begin = [&](StepPhase phase) {
    if (timing) {
      timing->begin(phase);
    }
  };

  TrainingSummary summary;
  summary.steps = progress.steps;
  double all_tokens = 0;
  const auto start = Clock::now();
  LossMeter losses;
  int64_t logged_steps = progress.steps;
  auto interval_start = start;
  int64_t& batch = progress.batch;
  while (summary.steps < total_steps) {
    for (int64_t micro = 0; micro < options.accumulate; ++micro, ++batch) {
      begin(StepPhase::kData);
      if (batch % batches == 0) {
        task.begin_epoch(batch / batches);
      }
      task.load(batch % batches);
      begin(StepPhase::kForward);
      const MicroBatch done = task.forward(batch % batches);
      losses.add(done.loss, options.accumulate, done.tokens);
      begin(StepPhase::kBackward);
      engine.backward(
          options.accumulate == 1
              ? done.loss
              : done.loss / static_cast<double>(options.accumulate));
    }
    begin(StepPhase::kOptimizer);
    scheduler.step(engine);
    StepMetrics metrics;
    metrics.lr = engine.learning_rate();
    if (options.clip_grad_norm > 0) {
      metrics.grad_norm = engine.clip_grad_norm(options.clip_grad_norm);
    }
    if (timing) {
      timing->end();
    }

    const int64_t step = summary.steps + 1;
    const bool saves = options.save_every > 0 && step % options.save_every == 0;
    const bool reports =
        step % options.log_every == 0 || step == total_steps || saves;
    if (reports) {
      // Before the step, so that a loss that is no number reaches no weight.
      const auto totals =
          losses.take(engine, world.size(), step - logged_steps);
      check_finite(totals.loss, logged_steps + 1, step);
      summary.last_loss = totals.loss;
      all_tokens += totals.tokens;
      metrics.loss = totals.loss;
      metrics.tokens = totals.tokens;
    }
    begin(StepPhase::kOptimizer);
    engine.step();
    if (timing) {
      timing->end();
    }

    progress.steps = summary.steps = step;
    if (reports) {
      const auto steps = static_cast<double>(step - logged_steps);
      metrics.step = step;
      metrics.epoch = static_cast<double>(batch) / static_cast<double>(batches);
      if (timing) {
        metrics.split = timing->take().divided_by(steps);
      }
      const double seconds = seconds_since(interval_start);
      metrics.step_seconds = seconds / steps;
      metrics.tokens_per_s = metrics.tokens / seconds;
      metrics.memory_bytes = peak_bytes(device);
      if (log) {
        log->add(metrics);
      }
      logged_steps = step;
    }
    if (saves) {
      engine.save(checkpoints_of(options), states, options.keep_last);
    }
    if (reports) {
      interval_start = Clock::now(); // saving is no part of a step
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
