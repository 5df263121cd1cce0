// SPDX-License-Identifier: Apache-2.0
#pragma once
// `estimate_step()` estimates the time of a training step from what a dry run
// of it computed and sent.

#include "tessera/planner/search/machine.h"

#include "tessera/engine/optim/optimizer_options.h"
#include "tessera/pipeline/make_schedule.h"
#include "tessera/planner/step_plan.h"

#include <cstdint>
#include <vector>

namespace tessera::planner {

/// Seconds of an optimizer step.
struct StepTime {
  double compute = 0; ///< of the slowest pipeline stage, with its update
  /// All-gathers and reductions of shards, which overlap with computation.
  double shards = 0;
  double activations = 0; ///< to host memory and back; overlaps likewise
  /// Of weights and gradients in host memory and on disks; likewise.
  double copies = 0;
  double layers = 0; ///< other collectives, for which computation waits
  double idle = 0; ///< of a pipeline's stages, waiting for each other
  /// Of state in host memory, with its transfers, as far as the device waits
  /// for it.
  double update = 0;

  /// Copies, collectives and updates in host memory run beside computation and
  /// each other. On a CPU they do not: the cores that compute do all of it.
  bool overlaps = true;

  /// Part of `compute` that larger micro-batches do not make shorter: weights
  /// are read as often as there are micro-batches.
  double least_compute = 0;
  /// Part of `compute` of the optimizer and what it needs, once in a step.
  double device_update = 0;

  double total() const;
  /// What computation waits for one of shards, activations and copies.
  double exposed(double StepTime::*part) const;
  /// At least what a step takes with larger micro-batches.
  double total_with_more_rows() const;
};

/// What is not in the plans.
struct EstimatedRun {
  int stages = 1; ///< of the pipeline
  PipelineScheduleKind schedule = PipelineScheduleKind::kOneForwardOneBackward;
  int chunks = 1; ///< of a pipeline stage
  int64_t accumulate = 1; ///< micro-batches of a step
  int64_t planned_accumulate = 1; ///< of the dry run
  bool in_16bit = true;
  /// When updates in host memory run.
  UpdateOverlap overlap = UpdateOverlap::kAutomatic;
  bool updates_in_backward = false; ///< EngineOptions::update_in_backward
};

/// Sums of operators and collectives at the machine's rates; pipeline stages
/// wait for each other as simulate_schedule() says. Kernel launches,
/// data and waits for the host are not included: good for comparing layouts,
/// not for promises.
/// @param plans of all pipeline stages.
StepTime estimate_step(
    const std::vector<StepMemoryPlan>& plans,
    const EstimatedRun& run,
    const Machine& machine);

/// Seconds of computation on the device before each moment of `plan.timeline`;
/// of an operator that is called more often in a module, the mean.
std::vector<double> timeline_seconds(
    const StepMemoryPlan& plan,
    bool in_16bit,
    const DeviceRates& rates);

} // namespace tessera::planner
