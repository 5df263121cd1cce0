// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/trainer.h"
#include "tessera/engine/option_agreement.h"
#include "tessera/engine/parallel/parallel_run.h"

#include "tessera/engine/schedule/lr_scheduler.h"
#include "tessera/engine/trainer/best_score.h"
#include "tessera/engine/trainer/loss_watch.h"
#include "tessera/engine/trainer/micro_batches.h"
#include "tessera/engine/trainer/profiled_steps.h"
#include "tessera/engine/trainer/run_checkpoints.h"
#include "tessera/engine/trainer/run_monitor.h"
#include "tessera/engine/trainer/run_position.h"
#include "tessera/engine/trainer/run_report.h"
#include "tessera/engine/trainer/training_hook.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/sharding/paging/pager.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>

namespace tessera {

namespace {

/// Steps of a run that has come this far, with the batches that it has now.
int64_t total_steps_from(
    const engine::RunPosition& position,
    const TrainerOptions& options,
    int64_t batches_per_epoch) {
  const int64_t left = options.epochs * batches_per_epoch - position.batch -
                       position.skipped_ahead();
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

} // namespace

std::vector<std::shared_ptr<MetricSink>> metric_sinks(
    const TrainerOptions& options) {
  std::vector<std::shared_ptr<MetricSink>> sinks;
  for (const std::string& name : options.metrics) {
    if (name != "jsonl") { // always there
      sinks.push_back(make_metric_sink(name));
    }
  }
  sinks.insert(sinks.end(), options.sinks.begin(), options.sinks.end());
  return sinks;
}

void add_final_metrics(
    const TrainerOptions& options,
    const nlohmann::ordered_json& line) {
  const MetricRun run = engine::metric_run_of(
      options.run_folder, engine::read_metrics(options.run_folder));
  for (const auto& sink : metric_sinks(options)) {
    sink->begin(run);
    sink->write(line);
    sink->finish();
  }
}

BatchShare batch_share(const World& world, const TrainerOptions& options) {
  return options.parallel != nullptr ? options.parallel->batches()
                                     : BatchShare{world.rank(), world.size()};
}

int64_t total_steps_of(
    const TrainerOptions& options,
    const TrainingTask& task) {
  return total_steps_from(
      engine::RunPosition({0, 1, task.batches_per_epoch()}),
      options,
      task.batches_per_epoch());
}

namespace {

/// How often a run goes back before it gives up.
constexpr int kMostRollBacks = 20;

/// One call of train().
class Training {
 public:
  Training(
      World& world,
      Engine& engine,
      TrainingTask& task,
      const TrainerOptions& options)
      : world_(world),
        engine_(engine),
        task_(task),
        options_(options),
        batches_(task.batches_per_epoch()),
        total_steps_(checked_steps(options, task)),
        scheduler_(
            engine.learning_rate(),
            with_steps(options.schedule, total_steps_)),
        progress_(
            {task.samples_per_epoch(),
             task.batch_size() * batch_share(world, options).count,
             batches_,
             task.batches_per_step()}),
        best_(options.best_metric, options.scored_data),
        checkpoints_(world, engine, options, {&scheduler_, &progress_, &best_}),
        watch_(options.loss_spike),
        profiled_(engine, options) {
    if (const auto from = checkpoint_of(world, options)) {
      resume(*from);
    }
    warn_of_bubbles(world, options);
    monitor_.emplace(world, engine, options, total_steps_, progress_.steps);
    micro_batches_.emplace(engine, task, world, options, *monitor_);
    good_batch_ = progress_.batch;
  }

  TrainingSummary run() {
    bool is_end = progress_.steps >= total_steps_;
    while (!is_end) {
      is_end = step();
    }
    log_last_profile();
    summary_.best_step = best_.step();
    summary_.best_text = best_.text();
    summary_.has_best_weights =
        best_.step() > 0 && best_.step() == progress_.steps;
    if (options_.export_best && summary_.stop_signal == 0 && best_.step() > 0 &&
        !summary_.has_best_weights) {
      summary_.has_best_weights = checkpoints_.load_best(best_.step());
      if (summary_.has_best_weights) {
        summary_.last_score.reset(); // of other weights
      }
    }
    // Restored for further training by the caller.
    engine_.set_learning_rate(scheduler_.peak_learning_rate());
    summary_.total_steps = total_steps_;
    monitor_->finish(progress_.steps, summary_);
    for_each_hook(progress_.steps, [&](auto& hook, const auto& at) {
      hook.at_end(at, summary_);
    });
    return summary_;
  }

 private:
  static int64_t checked_steps(
      const TrainerOptions& options,
      const TrainingTask& task) {
    const auto check_scored = [&](bool is_set, const char* name) {
      TESSERA_CHECK(
          !is_set || options.evaluate_every > 0,
          "training.{} is set, but training.evaluate_every (TrainerOptions) is 0, so that nothing is scored; set evaluate_every, e.g. to 100 steps.",
          name);
    };
    check_scored(options.keep_best, "keep_best");
    check_scored(options.export_best, "export_best");
    check_scored(options.early_stop > 0, "early_stop");
    const int64_t steps = total_steps_of(options, task);
    TESSERA_CHECK(
        steps > 0,
        "training: {} epoch(s) of {} batches per rank are too few for one optimizer step of {} micro-batches. Use more data or epochs, or smaller batches.",
        options.epochs,
        task.batches_per_epoch(),
        options.accumulate);
    return steps;
  }

  static LrScheduleOptions with_steps(
      LrScheduleOptions schedule,
      int64_t total_steps) {
    schedule.total_steps = total_steps;
    return schedule;
  }

  /// Loads a checkpoint of this or an earlier run.
  void load(const std::filesystem::path& from) {
    checkpoints_.load(from);
    summary_.last_score.reset();
    if (options_.restart_data && !has_restarted_data_) {
      progress_.restart();
    }
    has_restarted_data_ = true;
    // Other ranks or batch sizes give another number of remaining steps.
    total_steps_ = total_steps_from(progress_, options_, batches_);
    scheduler_.set_total_steps(total_steps_);
    if (task_.samples_per_epoch() > 0) {
      task_.begin_at(progress_.position_of(progress_.batch));
    }
    if (progress_.batch % batches_ != 0) {
      task_.begin_epoch(progress_.batch / batches_);
    }
  }

  void resume(const std::filesystem::path& from) {
    load(from);
    if (world_.rank() == 0) {
      if (progress_.steps < total_steps_) {
        log_info(
            "resuming from step {} of {} ('{}')",
            progress_.steps,
            total_steps_,
            from.string());
      } else {
        log_info(
            "nothing to train: the run has {} steps, and '{}' is at step {}",
            total_steps_,
            from.string(),
            progress_.steps);
      }
      if (progress_.repeated_samples() > 0 && !options_.restart_data) {
        log_info(
            "{} samples are repeated: the checkpoint is in the middle of a batch of the current size",
            progress_.repeated_samples());
      }
    }
  }

  /// @return whether it was the last one.
  bool step() {
    if (progress_.pass_skipped() && progress_.batch % batches_ != 0) {
      task_.begin_epoch(progress_.batch / batches_);
    }
    const int64_t step = progress_.steps + 1;
    profiled_.begin(step);
    scheduler_.step(engine_); // backward may update already
    for_each_hook(
        step, [](auto& hook, const auto& at) { hook.before_step(at); });
    micro_batches_->run(progress_.steps, progress_.batch);
    monitor_->end();
    for_each_hook(
        step, [](auto& hook, const auto& at) { hook.after_backward(at); });
    auto end = checkpoints_.decide(step, step == total_steps_);
    // Also after the last step, whose score may be the best. There may be no
    // time for it after a signal.
    const bool scores =
        options_.evaluate_every > 0 && end.stop_signal == 0 &&
        (step % options_.evaluate_every == 0 || step == total_steps_);
    const bool reports = monitor_->reports(step, end.saves || scores);
    if (reports) {
      // Before the step, so that a loss that is not finite does not reach the
      // weights.
      const int64_t first = monitor_->written_steps() + 1;
      const double loss = monitor_->read_losses(step);
      if (const auto problem = watch_.add(loss, first, step)) {
        if (options_.on_bad_loss == OnBadLoss::kEnd) {
          if (engine_.pager().pages().updated_in_backward()) {
            engine_.step(); // or the caller's next forward would be refused
          } else {
            engine_.zero_grad();
          }
          return true;
        }
        roll_back(*problem);
        return progress_.steps >= total_steps_;
      }
    }
    monitor_->begin(engine::StepPhase::kOptimizer);
    std::optional<DeferredScalar> grad_norm;
    if (options_.clip_grad_norm > 0) {
      grad_norm = engine_.clip_grad_norm(options_.clip_grad_norm);
    }
    bool is_skipped = false;
    try {
      is_skipped = !engine_.step();
    } catch (const NonfiniteGradientError& error) {
      if (options_.on_bad_loss == OnBadLoss::kStop) {
        throw;
      }
      monitor_->end();
      if (options_.on_bad_loss == OnBadLoss::kEnd) {
        return true;
      }
      if (!reports) {
        monitor_->read_losses(step); // of steps that do not count
      }
      roll_back(error.problem());
      return progress_.steps >= total_steps_;
    }
    if (!is_skipped) {
      task_.after_step(step, total_steps_);
    }
    monitor_->end();
    if (const auto profile = profiled_.end(step)) {
      monitor_->log_text(*profile);
    }

    progress_.steps = step;
    if (is_skipped) {
      monitor_->log_skipped(step);
    }
    for_each_hook(step, [&](auto& hook, const auto& at) {
      hook.after_step(at, is_skipped);
    });
    std::optional<TaskScore>& score = summary_.last_score;
    score.reset();
    bool is_best = false;
    if (scores) {
      score = monitor_->score(task_, step, [&] {
        end.stop_signal = checkpoints_.agreed_signal();
        return end.stop_signal != 0;
      });
      end.saves |= end.stop_signal != 0;
    }
    if (score) {
      is_best = best_.add(*score, step) &&
                (options_.keep_best || options_.export_best);
      for_each_hook(step, [&](auto& hook, const auto& at) {
        hook.after_evaluation(at, *score);
      });
    }
    summary_.stop_signal = end.stop_signal;
    summary_.stopped_early = score.has_value() && options_.early_stop > 0 &&
                             best_.since_best() >= options_.early_stop;
    const bool is_end =
        step == total_steps_ || end.stop_signal != 0 || summary_.stopped_early;
    if (reports) {
      monitor_->write(
          step,
          static_cast<double>(progress_.batch) / static_cast<double>(batches_),
          engine_.learning_rate(),
          is_skipped ? std::optional(std::numeric_limits<double>::infinity())
                     : std::optional<double>(grad_norm),
          score);
      good_batch_ = progress_.batch;
    }
    save(
        step,
        end.saves || is_best || (is_end && options_.save_last),
        is_best,
        is_end);
    return is_end;
  }

  void save(int64_t step, bool saves, bool is_best, bool is_end) {
    log_begun_save(/*blocks=*/saves || is_end);
    if (saves && engine_.saves_in_background() && !is_end) {
      checkpoints_.begin_save(step, is_best);
      monitor_->skip_time();
    } else if (saves) {
      const auto saved = checkpoints_.save(step, is_best);
      if (is_end) {
        summary_.checkpoint = saved.path;
      }
      log_saved(saved);
      monitor_->skip_time();
    }
  }

  /// Of a run that ended before all of its steps were profiled.
  void log_last_profile() {
    if (const auto profile = profiled_.finish()) {
      monitor_->log_text(*profile);
    } else if (
        options_.profile_steps > 0 &&
        progress_.steps < options_.profile_first && world_.rank() == 0) {
      log_warning(
          "no step was profiled: the run has {} steps, and training.profile_first is {}",
          progress_.steps,
          options_.profile_first);
    }
  }

  void log_begun_save(bool blocks) {
    if (const auto saved = checkpoints_.begun_save(blocks)) {
      log_saved(*saved);
    }
  }

  void log_saved(const engine::RunCheckpoints::Saved& saved) {
    monitor_->log_saved(saved.text, !saved.path.empty());
    if (!saved.path.empty()) {
      for_each_hook(saved.step, [&](auto& hook, const auto& at) {
        hook.on_checkpoint(at, saved.path);
      });
    }
  }

  template <typename Call>
  void for_each_hook(int64_t step, const Call& call) {
    const TrainingPoint at{world_, engine_, step, total_steps_};
    for (TrainingHook* hook : options_.hooks) {
      call(*hook, at);
    }
  }

  /// With update_in_backward they are in the weights, which the caller loads
  /// anew.
  void drop_gradients() {
    if (!engine_.pager().pages().updated_in_backward()) {
      engine_.zero_grad();
    }
  }

  /// Returns to the newest checkpoint, and leaves out the micro-batches since
  /// the last good loss. Collective: all ranks have the same losses.
  /// @throws tessera::Error if that is not wanted or not possible.
  void roll_back(const std::string& problem) {
    log_begun_save(/*blocks=*/true);
    const auto newest = checkpoints_.newest();
    TESSERA_CHECK(
        progress_.steps > 0,
        "training: {}. No step has changed the weights yet: check the weights that training starts from, the data of this step, and whether they are too large for the dtype.",
        problem);
    TESSERA_CHECK(
        options_.on_bad_loss == OnBadLoss::kRollBack && newest &&
            roll_backs_ < kMostRollBacks,
        "training: {}. Lower the learning rate, clip the gradients (training.clip_grad_norm), or check the data of these steps.{}",
        problem,
        options_.on_bad_loss != OnBadLoss::kRollBack
            ? " training.on_bad_loss=roll_back leaves them out."
        : newest ? formatted(" The run has gone back {} times.", kMostRollBacks)
                 : std::string(" There is no checkpoint to go back to."));
    ++roll_backs_;
    const engine::RunPosition::Range bad{good_batch_, progress_.batch};
    drop_gradients();
    progress_.skipped.push_back(bad);
    load(*newest); // adds those of the checkpoint
    watch_.rewind(progress_.steps);
    monitor_->rewind(progress_.steps, total_steps_);
    monitor_->log_rolled_back(formatted(
        "{}: back to step {}, without the {} samples since the last good loss (from sample {} of epoch {} on)",
        problem,
        progress_.steps,
        progress_.samples_in(bad.end - bad.begin),
        progress_.position_of(bad.begin).samples,
        progress_.position_of(bad.begin).epoch));
    good_batch_ = progress_.batch;
  }

  World& world_;
  Engine& engine_;
  TrainingTask& task_;
  const TrainerOptions& options_;
  int64_t batches_; ///< per epoch
  int64_t total_steps_;
  LrScheduler scheduler_;
  engine::RunPosition progress_;
  engine::BestScore best_;
  engine::RunCheckpoints checkpoints_;
  engine::LossWatch watch_;
  engine::ProfiledSteps profiled_;
  std::optional<engine::RunMonitor> monitor_; ///< of the steps to do
  std::optional<engine::MicroBatches> micro_batches_;
  TrainingSummary summary_;
  bool has_restarted_data_ = false;
  int64_t good_batch_ = 0; ///< where the last good loss ended
  int roll_backs_ = 0;
};

} // namespace

namespace {

/// Ranks with other numbers of micro-batches or steps would wait for each
/// other.
void check_same_training(World& world, const TrainerOptions& options) {
  if (world.size() == 1) {
    return;
  }
  runtime::OptionTexts texts;
  for (const auto& [path, value] : runtime::option_texts(options)) {
    if (!path.starts_with("metrics")) { // of rank 0
      texts.emplace("training." + path, value);
    }
  }
  for (const auto& [path, value] : runtime::option_texts(options.schedule)) {
    texts.emplace("schedule." + path, value);
  }
  texts["the seed of random numbers"] =
      options.random_seed ? std::to_string(*options.random_seed) : "not set";
  engine::check_same_on_all_ranks(
      world, "training options", texts, "training: ");
}

} // namespace

TrainingSummary train(
    World& world,
    Engine& engine,
    TrainingTask& task,
    const TrainerOptions& options) {
  check_same_training(world, options);
  return Training(world, engine, task, options).run();
}

} // namespace tessera
