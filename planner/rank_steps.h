// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RankSteps` makes the training steps of one rank of a simulated job, in a dry
// run or with numbers.

#include "tessera/engine/engine.h"
#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/planner/step_plan.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/comm/simulated_job.h"

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <vector>

namespace tessera::planner {

/// A World, a module and its engine, for the steps that PlannedJob describes.
class RankSteps {
 public:
  /// Makes and wraps the module. Not collective.
  /// @param training outlives this object.
  RankSteps(
      const PlannedTraining& training,
      const EngineOptions& options,
      const PlannedJob& job,
      const std::shared_ptr<runtime::SimulatedJob>& simulation,
      const InitOptions& init);

  /// Forward, backward and update of all micro-batches.
  /// @param after_forward called after each forward with the number of its
  ///   micro-batch; not with pipeline stages.
  /// @return the mean loss of the micro-batches, not multiplied by the loss
  ///   scale; undefined on pipeline stages without losses.
  at::Tensor run(
      int step,
      const std::function<void(int number)>& after_forward = {});

  torch::nn::Module& module() {
    return *module_;
  }
  const PlannedBeside& beside() const {
    return beside_;
  }
  /// Engine::planned_memory(), ::measured_memory() and ::allocated_memory() of
  /// the module, and of what is beside it.
  MemoryBytes planned_memory(MemoryTier tier) const;
  MemoryBytes measured_memory(MemoryTier tier) const;
  MemoryBytes allocated_memory(MemoryTier tier) const;
  /// Bytes of activations that have been copied to the host and back.
  CopiedBytes copied_activations() const;

 private:
  MemoryBytes sum_over_engines(
      const std::function<MemoryBytes(const Engine&)>& bytes_of) const;
  at::Tensor run_micro_batches(
      int step,
      const std::function<void(int number)>& after_forward);
  at::Tensor run_stage(int step);

  const PlannedTraining& training_;
  PlannedJob job_;
  World world_;
  ParallelRun parallel_;
  std::vector<at::Tensor> batches_;
  std::shared_ptr<torch::nn::Module> module_;
  PlannedBeside beside_;
  Engine engine_;
};

/// tessera::plan_stages() where stages are alike.
/// @param stand_ins by pipeline stage, the one whose dry run is its plan too:
///   itself, or the first of those before it that are like it. Empty: each has
///   its own.
/// @return memory of such stages is that of the one, which keeps the most
///   micro-batches.
std::vector<StepMemoryPlan> plan_stages(
    const PlannedTraining& training,
    const EngineOptions& options,
    const PlannedJob& job,
    const std::vector<int>& stand_ins);

/// The dry run of one rank of `simulation`; others that are present have to run
/// at the same time. See tessera::plan().
StepMemoryPlan plan_rank(
    const PlannedTraining& training,
    const EngineOptions& options,
    const PlannedJob& job,
    const std::shared_ptr<runtime::SimulatedJob>& simulation);

} // namespace tessera::planner
