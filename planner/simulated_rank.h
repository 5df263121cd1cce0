// SPDX-License-Identifier: Apache-2.0
#pragma once
// `simulate_rank()` trains one rank of a job whose other ranks do not exist,
// with numbers and under a limit of memory, beside its plan.

#include "tessera/engine/engine.h"
#include "tessera/planner/step_plan.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/memory/memory_ledger.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace tessera {

struct MeasuredStep {
  double seconds = 0; ///< with collectives
  /// Of them, in place of collectives: what the host copies, and in a pipeline
  /// the wait for the dry runs of the other stages.
  double collective_seconds = 0;
  /// Mean of the micro-batches; nothing on pipeline stages without losses. Its
  /// value means nothing but that it is finite.
  std::optional<double> loss;
};

struct SimulatedRun {
  /// Of the same rank; on the rank's own device.
  StepMemoryPlan plan;
  /// What the engine held at most, of the moments between forwards, backwards
  /// and updates.
  TierBytes measured{};
  /// The most that LibTorch's allocator had given out for tensors on the
  /// device, without those that existed before.
  int64_t peak_bytes = 0;
  std::vector<MeasuredStep> steps;
};

struct SimulationOptions {
  /// The device's memory for tensors, also for those that exist already. An
  /// allocation beyond it fails. Nothing: what the machine has.
  std::optional<int64_t> memory_cap;
  /// Whether a CUDA device is used, if there is one. PlannedJob::device follows
  /// from it.
  InitOptions init;
  /// Called after the plan, which is made first, and after each step; may be
  /// empty.
  std::function<void(const SimulatedRun& run)> report;
};

/// Makes the plan of job.rank, and then PlannedJob::steps steps of it with real
/// tensors and real computation. Collectives end at once, see
/// runtime/comm/simulated_job.h. The other pipeline stages of the rank's
/// pipeline are dry runs in this process. Writes no files but those of
/// MemoryBudget::nvme_path. Not collective; the process need not have joined a
/// job.
/// @param options as given to wrap(), without EngineOptions::parallel.
/// @throws tessera::Error with what the engine held, by purpose, if memory runs
///   out; on ranks that divide sequences or experts, where what the others send
///   depends on their tokens; on pipeline stages on CUDA; all that plan()
///   throws.
SimulatedRun simulate_rank(
    const PlannedTraining& training,
    const EngineOptions& options,
    const PlannedJob& job,
    const SimulationOptions& simulation = {});

} // namespace tessera
