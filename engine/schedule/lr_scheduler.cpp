// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/schedule/lr_scheduler.h"

#include "tessera/engine/engine.h"
#include "tessera/runtime/core/log.h"

#include <nlohmann/json.hpp>

namespace tessera {

namespace {

/// A warm-up that is longer than the run is mostly a mistake.
void warn_of_warmup(double peak_lr, const LrScheduleOptions& options) {
  const int64_t warmup_steps = warmup_steps_of(options);
  if (warmup_steps > options.total_steps && is_log_rank_zero()) {
    log_warning(
        "the learning rate does not reach {}, its peak: the warm-up has {} steps (schedule.warmup_steps), and the run {}; lower it, or set schedule.warmup_fraction in its place.",
        peak_lr,
        warmup_steps,
        options.total_steps);
  }
}

} // namespace

LrScheduler::LrScheduler(double peak_lr, const LrScheduleOptions& options)
    : peak_lr_(peak_lr), options_(options) {
  check(options_);
  warn_of_warmup(peak_lr_, options_);
}

double LrScheduler::learning_rate() const {
  return peak_lr_ * lr_factor_at(options_, steps_);
}

void LrScheduler::step(Engine& engine) {
  engine.set_learning_rate(learning_rate());
  ++steps_;
}

void LrScheduler::set_total_steps(int64_t total_steps) {
  LrScheduleOptions changed = options_;
  changed.total_steps = total_steps;
  check(changed);
  if (total_steps != options_.total_steps) {
    warn_of_warmup(peak_lr_, changed);
  }
  options_ = changed;
}

std::string LrScheduler::name() const {
  return "lr_scheduler";
}

CheckpointState LrScheduler::save_state() const {
  // The options are not saved: a run may be extended with other ones.
  return {{{"steps", steps_}}, {}};
}

void LrScheduler::load_state(const CheckpointState& state) {
  steps_ = state.values.at("steps").get<int64_t>();
}

} // namespace tessera
