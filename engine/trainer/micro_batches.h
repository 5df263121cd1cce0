// SPDX-License-Identifier: Apache-2.0
#pragma once
// `MicroBatches` runs the forwards and backwards of an optimizer step.

#include "tessera/engine/engine.h"
#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/engine/trainer/run_monitor.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/engine/trainer/training_task.h"

#include <cstdint>
#include <optional>

namespace tessera::engine {

/// Runs the micro-batches of a step, one after the other or through a pipeline,
/// and reports them to the monitor.
class MicroBatches {
 public:
  /// All references must outlive this object.
  /// @throws tessera::Error if there are pipeline stages and the task is not a
  ///   PipelineTask.
  MicroBatches(
      Engine& engine,
      TrainingTask& task,
      const World& world,
      const TrainerOptions& options,
      RunMonitor& monitor);

  /// Runs one step. Gradients are those of the mean over its micro-batches.
  /// Collective.
  /// @param step number of the step.
  /// @param batch index in the run of the step's first micro-batch; advanced
  ///   past the step.
  void run(int64_t step, int64_t& batch);

 private:
  void begin(int64_t batch);
  void run_stages(int64_t step, int64_t& batch);
  /// Calls `forward` with the random key of a micro-batch.
  template <typename Forward>
  auto with_random_key(int64_t step, int64_t micro, const Forward& forward);

  Engine& engine_;
  TrainingTask& task_;
  PipelineTask* stages_; ///< null if the task is not one
  PipelineExecutor* pipeline_; ///< null without pipeline stages
  RunMonitor& monitor_;
  std::optional<uint64_t> random_seed_;
  BatchShare share_;
  c10::Device device_; ///< of the parameters
  int64_t count_;
  int64_t per_epoch_;
};

} // namespace tessera::engine
