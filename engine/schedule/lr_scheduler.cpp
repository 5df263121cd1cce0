// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/schedule/lr_scheduler.h"

#include "tessera/engine/engine.h"
#include "tessera/runtime/core/log.h"

#include <nlohmann/json.hpp>

namespace tessera {

LrScheduler::LrScheduler(double peak_lr, const LrScheduleOptions& options)
    : peak_lr_(peak_lr), options_(options) {
  check(options_);
  if (options_.warmup_steps > options_.total_steps) {
    log_warning(
        "learning-rate schedule: the warm-up of {} steps is longer than the run of {}: the learning rate never reaches {}.",
        options_.warmup_steps,
        options_.total_steps,
        peak_lr_);
  }
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
