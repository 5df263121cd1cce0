// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/run_monitor.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/memory/device_memory.h"
#include "tessera/runtime/profile/device_peak.h"
#include "tessera/sharding/paging/pager.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace tessera::engine {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

/// The type of most parameters.
c10::ScalarType dtype_of(const Engine& engine) {
  std::map<c10::ScalarType, int64_t> numel;
  const sharding::Pager& pager = engine.pager();
  for (size_t i = 0; i < pager.pages().entries().size(); ++i) {
    const at::Tensor& parameter = pager.pages().parameter(i).record.tensor;
    numel[parameter.scalar_type()] += parameter.numel();
  }
  const auto most = std::max_element(
      numel.begin(), numel.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      });
  return most == numel.end() ? at::kFloat : most->first;
}

/// What all ranks' devices can do.
StepWork peak_of_ranks(Engine& engine) {
  engine.sum_over_ranks(at::zeros({1}, at::kDouble)); // all begin together
  const auto peak = runtime::device_peak(engine.device(), dtype_of(engine));
  const at::Tensor sums =
      at::tensor({peak.flops_per_s, peak.is_measured ? 1.0 : 0.0}, at::kDouble);
  engine.sum_over_ranks(sums);
  const auto* values = sums.const_data_ptr<double>();
  return {.peak_flops_per_s = values[0], .is_measured = values[1] > 0};
}

} // namespace

RunMonitor::RunMonitor(
    const World& world,
    Engine& engine,
    const TrainerOptions& options,
    int64_t total_steps,
    int64_t done_steps)
    : world_(world),
      engine_(engine),
      options_(options),
      total_steps_(total_steps),
      batches_(batch_share(world, options)),
      reports_loss_(
          options.parallel == nullptr || options.parallel->reports_loss()),
      device_(engine.device()),
      done_steps_(done_steps),
      written_steps_(done_steps) {
  TESSERA_CHECK(
      options.log_every > 0,
      "training: log_every is {}; it is the number of steps between log lines and must be at least 1.",
      options.log_every);
  if (options.step_timing) {
    timing_.emplace(device_, engine_.transfer_waits());
  }
  if (options.count_flops) {
    flops_.emplace();
    peak_ = peak_of_ranks(engine);
  }
  if (world.rank() == 0) {
    log_ = std::make_unique<TrainingLog>(
        options.run_folder,
        total_steps,
        done_steps,
        options.facts,
        metric_sinks(options));
  }
}

void RunMonitor::begin(StepPhase phase) {
  if (timing_) {
    timing_->begin(phase);
  }
}

void RunMonitor::end() {
  if (timing_) {
    timing_->end();
  }
}

void RunMonitor::begin_work(int64_t tokens) {
  if (flops_) {
    flops_->begin(tokens);
  }
}

void RunMonitor::end_work(int64_t tokens) {
  if (flops_) {
    flops_->end(tokens);
  }
}

void RunMonitor::add(const MicroBatch& batch, int64_t padding) {
  if (reports_loss_) {
    losses_.add(batch.loss, options_.accumulate, batch.tokens, padding);
  }
}

void RunMonitor::add(
    const std::vector<at::Tensor>& losses,
    int64_t tokens,
    int64_t padding) {
  for (const at::Tensor& loss : losses) {
    add({loss, std::exchange(tokens, 0)}, std::exchange(padding, 0));
  }
}

bool RunMonitor::reports(int64_t step, bool saves) const {
  // Before a checkpoint, losses are checked, and a resumed run has all lines up
  // to its first step.
  return step % options_.log_every == 0 || step == total_steps_ || saves;
}

double RunMonitor::read_losses(int64_t step) {
  totals_ = losses_.take(
      engine_,
      batches_.count,
      step - written_steps_,
      flops_ ? flops_->take() : 0);
  tokens_ += totals_.tokens;
  return totals_.loss;
}

void RunMonitor::rewind(int64_t step, int64_t total_steps) {
  if (timing_) {
    timing_->take();
  }
  if (log_) {
    log_.reset(); // its files are closed before they are opened again
    log_ = std::make_unique<TrainingLog>(
        options_.run_folder,
        total_steps,
        step,
        options_.facts,
        metric_sinks(options_));
  }
  total_steps_ = total_steps;
  written_steps_ = step;
  interval_start_ = Clock::now();
}

void RunMonitor::log_text(const std::string& text) {
  if (log_) {
    log_->log_text(text, LogLevel::kInfo);
  }
}

void RunMonitor::log_rolled_back(const std::string& text) {
  if (log_) {
    log_->log_text(text, LogLevel::kWarning);
  }
}

void RunMonitor::write(
    int64_t step,
    double epoch,
    double lr,
    std::optional<double> grad_norm,
    const std::optional<TaskScore>& score) {
  const auto steps = static_cast<double>(step - written_steps_);
  StepMetrics metrics;
  metrics.step = step;
  metrics.epoch = epoch;
  metrics.loss = totals_.loss;
  metrics.lr = lr;
  metrics.grad_norm = grad_norm;
  metrics.tokens = totals_.tokens;
  metrics.non_padding_tokens = totals_.tokens - totals_.padding;
  if (timing_) {
    metrics.split = timing_->take().divided_by(steps);
  }
  const double seconds = seconds_since(interval_start_);
  metrics.step_seconds = seconds / steps;
  metrics.tokens_per_s = metrics.tokens / seconds;
  if (totals_.flops > 0) {
    metrics.work = peak_;
    metrics.work->flops = totals_.flops / steps;
  }
  metrics.memory_bytes = runtime::peak_bytes(device_);
  if (score) {
    for (const auto& [name, value] : score->values.items()) {
      // Not their number, which is an integer.
      if (name.starts_with(kHeldoutPrefix) && value.is_number_float()) {
        metrics.heldout.emplace_back(name, value.get<double>());
      }
    }
  }
  if (log_) {
    log_->add(metrics);
  }
  written_steps_ = step;
  interval_start_ = Clock::now();
}

std::optional<TaskScore> RunMonitor::score(
    TrainingTask& task,
    int64_t step,
    const std::function<bool()>& stops) {
  const auto start = Clock::now();
  bool stopped = false;
  const auto score = [&] {
    std::optional<EmaScope> averaged;
    if (options_.ema_evaluate) {
      averaged.emplace(engine_.ema());
    }
    return task.score([&] {
      stopped = stopped || stops();
      return stopped;
    });
  }();
  TESSERA_CHECK(
      score.has_value() || stopped,
      "training.evaluate_every is {}, but there are no held-out data; set data.heldout, or training.evaluate_every=0",
      options_.evaluate_every);
  interval_start_ += Clock::now() - start;
  if (log_) {
    log_->log_text(
        score
            ? formatted("step {}: held-out {}", step, score->text)
            : formatted(
                  "step {}: the held-out data are not scored to the end, because the run is to end",
                  step),
        LogLevel::kInfo);
  }
  return score;
}

void RunMonitor::log_skipped(int64_t step) {
  // Of steps without loss scaling the engine tells.
  if (engine_.loss_scale() != 1) {
    const auto line = skipped_.add(step, engine_.loss_scale());
    if (log_ && line) {
      log_->log_text(*line, LogLevel::kWarning);
    }
  }
}

void RunMonitor::log_saved(const std::string& text, bool is_saved) {
  if (log_) {
    log_->log_text(text, is_saved ? LogLevel::kInfo : LogLevel::kWarning);
  } else if (!is_saved) {
    log_warning("{}", text); // the cause may be here
  }
}

void RunMonitor::skip_time() {
  interval_start_ = Clock::now();
}

void RunMonitor::finish(int64_t steps, TrainingSummary& summary) {
  summary.skipped_steps = skipped_.count();
  if (log_) {
    if (const auto line =
            skipped_.summary(steps - done_steps_, engine_.loss_scale())) {
      log_->log_text(*line, LogLevel::kWarning);
    }
    log_->finish();
  }
  summary.steps = steps;
  summary.new_steps = steps - done_steps_;
  summary.last_loss = totals_.loss;
  summary.seconds = seconds_since(start_);
  summary.tokens_per_s = tokens_ / summary.seconds;
}

} // namespace tessera::engine
