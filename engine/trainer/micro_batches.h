// SPDX-License-Identifier: Apache-2.0
#pragma once
// Forwards and backwards of an optimizer step.

#include "tessera/engine/engine.h"
#include "tessera/engine/trainer/run_monitor.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/engine/trainer/training_task.h"

#include <cstdint>

namespace tessera {

/// Carries out a step's micro-batches, one after the other or through a
/// pipeline, and tells the monitor.
class MicroBatches {
 public:
  /// All references outlive this.
  /// @throws tessera::Error for pipeline stages and a task without.
  MicroBatches(
      Engine& engine,
      TrainingTask& task,
      const TrainerOptions& options,
      RunMonitor& monitor);

  /// Gradients are those of the mean. Collective.
  /// @param batch of the run, the step's first; moves on.
  void run(int64_t& batch);

 private:
  void begin(int64_t batch);
  void run_stages(int64_t& batch);

  Engine& engine_;
  TrainingTask& task_;
  PipelineTask* stages_; ///< null where the task has none
  PipelineExecutor* pipeline_; ///< null without stages
  RunMonitor& monitor_;
  int64_t count_;
  int64_t per_epoch_;
};

} // namespace tessera
