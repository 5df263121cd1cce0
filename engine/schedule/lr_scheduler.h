// SPDX-License-Identifier: Apache-2.0
#pragma once
// Walks an engine's learning rate along a schedule.

#include "tessera/engine/checkpoint/checkpointable.h"
#include "tessera/engine/engine_ref.h"
#include "tessera/engine/schedule/lr_schedule.h"

#include <cstdint>
#include <string>

namespace tessera {

/// ```
/// LrScheduler scheduler(engine.learning_rate(), options);
/// for (...) { scheduler.step(engine); ...; engine.step(); }
/// ```
/// Parameters with a lr_scale of their own keep it: it multiplies the rate.
class LrScheduler : public Checkpointable {
 public:
  /// @param peak_lr what factors are of.
  /// @throws tessera::Error on options outside their range.
  LrScheduler(double peak_lr, const LrScheduleOptions& options);

  /// The rate of the coming step.
  double learning_rate() const;

  /// Sets it and counts the step; once for each Engine::step(), before the
  /// backward that leads to it.
  void step(EngineRef engine);

  /// Stretches the schedule, for a run whose length has changed.
  void set_total_steps(int64_t total_steps);

  double peak_learning_rate() const {
    return peak_lr_;
  }
  /// Steps that have been counted.
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
