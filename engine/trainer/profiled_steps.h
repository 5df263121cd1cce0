// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ProfiledSteps` profiles some steps of a training run.

#include "tessera/engine/profile/step_profiler.h"
#include "tessera/engine/trainer/trainer.h"

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::engine {

/// Profiles the steps TrainerOptions::profile_first and following and writes
/// profile/ in the run folder: trace-rank-N.json of each rank, and of rank 0
/// profile.txt and profile.json. Does nothing without ::profile_steps.
class ProfiledSteps {
 public:
  /// Both must outlive this object.
  ProfiledSteps(Engine& engine, const TrainerOptions& options)
      : engine_(engine), options_(options) {}

  /// @param step from 1 on.
  void begin(int64_t step);
  /// @return the table, after the last step.
  std::optional<std::string> end(int64_t step);
  /// Ends a profile that has not had all its steps.
  /// @return the table, if there was such a profile.
  std::optional<std::string> finish();

 private:
  Engine& engine_;
  const TrainerOptions& options_;
  std::optional<StepProfiler> profiler_;
};

} // namespace tessera::engine
