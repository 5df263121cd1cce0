// SPDX-License-Identifier: Apache-2.0
#pragma once
// `plan()` of a module and a machine finds options for wrap() with which
// training fits into memory and is fast.

#include "tessera/engine/engine.h"
#include "tessera/planner/search/plan_machine.h"
#include "tessera/planner/step_plan.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// The training of a module, of which a search changes micro-batches and what
/// is recomputed.
struct PlannedModule {
  /// The forward and loss of a micro-batch of `rows` rows through the module,
  /// called in dry runs as PlannedTraining::loss.
  std::function<at::Tensor(int64_t rows)> loss;
  int64_t batch_size = 1; ///< rows of a rank's micro-batch
  int64_t accumulate = 1; ///< micro-batches of a step
  /// Micro-batches may have other numbers of rows; a step keeps all of its
  /// rows. Otherwise, and where the module has BatchNorm layers that train,
  /// whose statistics are those of a micro-batch, they have `batch_size`.
  bool changes_rows = true;
  /// clip_grad_norm() is called before each update.
  bool clips_gradients = false;
  /// Layers that `prepare` can have recomputed. Nothing: the CheckpointBlocks
  /// of the module, those of TransformerBlockLists too; the first of them are
  /// recomputed, by CheckpointedModule::use_checkpoint, which is given back.
  std::optional<int64_t> layers;
  /// Layers that are recomputed now, if `layers` is given.
  int64_t recomputed_layers = 0;
  /// Called before each dry run, outside of it: makes the module recompute so
  /// many layers, and may make the batch. A dry run then keeps its values, and
  /// does not count its memory; it counts what `loss` makes. May be empty.
  std::function<void(int64_t rows, int64_t recomputed_layers)> prepare;
};

/// A way to train a module, planned.
struct ModulePick {
  EngineOptions options; ///< for wrap(); defaults if they were refused
  int64_t batch_size = 0; ///< rows of a rank's micro-batch
  int64_t accumulate = 0; ///< micro-batches of a step
  int64_t recomputed_layers = 0;
  /// `key=value` of a configuration: those of `options` that the search set.
  std::vector<std::string> changed;
  int64_t device_bytes = 0; ///< peak of a device
  int64_t host_bytes = 0; ///< of a rank's host memory
  int64_t nvme_bytes = 0; ///< of a rank's files
  double step_seconds = 0; ///< estimated
  double rows_per_second = 0; ///< of the job, estimated
  /// Empty: it fits. Else what is wrong, in a line.
  std::string problem;
  /// Nothing if the options were refused.
  std::optional<StepMemoryPlan> step;

  bool fits() const {
    return problem.empty();
  }
};

/// Something else that would fit where nothing does.
struct ModuleChange {
  std::string change; ///< "devices=16", "precision.parameters=bfloat16"
  ModulePick pick;
};

struct ModulePlan {
  /// The options as they are, first, and then others.
  std::vector<ModulePick> picks;
  /// In `picks`: the fastest that fits, or with the fewest micro-batches of
  /// those that are nearly as fast (PlanAnswer::best); nothing if none does.
  std::optional<size_t> best;
  /// If nothing fits, in `picks`: the one that lacks least.
  std::optional<size_t> nearest;
  std::vector<ModuleChange> changes; ///< if nothing fits
  /// What a device has for a plan: without what is reserved and the margin.
  int64_t limit_bytes = 0;

  /// Null if nothing fits.
  const ModulePick* best_pick() const {
    return best ? &picks[*best] : nullptr;
  }
};

/// The search of `tessera plan` (docs/planning.md) for a module that exists, of
/// what wrap() can choose: ZeRO stages and budgets, state, gradients,
/// parameters and activations in host memory, recomputation, rows of
/// micro-batches. A step keeps its rows; what the options place stays there.
/// Ranks that divide layers are not searched. Takes some dry runs of plan(),
/// neither memory nor devices. The module, which is not wrapped, stays as it
/// is. Not collective.
/// Options and rows for which `training` throws are left out; see
/// ModulePick::problem.
/// @param options as for wrap(), without EngineOptions::parallel.
/// @throws tessera::Error on options that wrap() refuses and on a machine
///   without memory; and all but tessera::Error that `training` throws for the
///   options as they are.
ModulePlan plan(
    torch::nn::Module& module,
    const EngineOptions& options,
    const PlannedModule& training,
    const PlanMachine& machine);

} // namespace tessera
