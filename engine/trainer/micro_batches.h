// SPDX-License-Identifier: Apache-2.0
#pragma once
// Forwards and backwards of an optimizer step.

#include "tessera/engine/engine_ref.h"
#include "tessera/engine/trainer/run_monitor.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/engine/trainer/training_task.h"

#include <cstdint>
#include <optional>

namespace tessera {

/// Carries out a step's micro-batches, one after the other or through a
/// pipeline, and tells the monitor.
class MicroBatches {
 public:
  /// All references outlive this.
  /// @throws tessera::Error for pipeline stages and a task without.
  MicroBatches(
      EngineRef engine,
      TrainingTask& task,
      const World& world,
      const TrainerOptions& options,
      RunMonitor& monitor);

  /// Gradients are those of the mean. Collective.
  /// @param step whose micro-batches they are.
  /// @param batch of the run, the step's first; moves on.
  void run(int64_t step, int64_t& batch);

 private:
  void begin(int64_t batch);
  void run_stages(int64_t step, int64_t& batch);
  /// Calls `forward` with the generators of a micro-batch.
  template <typename Forward>
  auto with_random_key(int64_t step, int64_t micro, const Forward& forward);

  EngineRef engine_;
  TrainingTask& task_;
  PipelineTask* stages_; ///< null where the task has none
  PipelineExecutor* pipeline_; ///< null without stages
  RunMonitor& monitor_;
  std::optional<uint64_t> random_seed_;
  BatchShare share_;
  c10::Device device_; ///< of the parameters
  int64_t count_;
  int64_t per_epoch_;
};

} // namespace tessera
