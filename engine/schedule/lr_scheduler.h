// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LrScheduler` sets an engine's learning rate according to a schedule.

#include "tessera/engine/checkpoint/checkpointable.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/schedule/lr_schedule.h"

#include <cstdint>
#include <string>

namespace tessera {

/// Sets the learning rate of every step and counts the steps.
/// ```
/// LrScheduler scheduler(engine.learning_rate(), options);
/// for (...) { scheduler.step(engine); ...; engine.step(); }
/// ```
/// A parameter's own lr_scale still multiplies the rate.
class LrScheduler : public Checkpointable {
 public:
  /// @param peak_lr the rate at factor 1.
  /// @throws tessera::Error on options outside their range.
  LrScheduler(double peak_lr, const LrScheduleOptions& options);

  /// The learning rate of the next step.
  double learning_rate() const;

  /// Sets the learning rate and counts the step. Call it once for each
  /// Engine::step(), before the step's first backward.
  void step(Engine& engine);

  /// Changes the length of the schedule, for a run whose length has changed.
  void set_total_steps(int64_t total_steps);

  double peak_learning_rate() const {
    return peak_lr_;
  }
  /// The steps counted so far.
  int64_t steps() const {
    return steps_;
  }

  std::string name() const override;
  CheckpointState save_state() const override;
  void load_state(const CheckpointState& state) override;

 private:
  double peak_lr_;
  LrScheduleOptions options_;
  int64_t steps_ = 0;
};

} // namespace tessera
