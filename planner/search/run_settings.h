// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RunSettings` are what a search of plans has to know of a run, and its dry
// run.

#include "tessera/engine/engine.h"
#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/planner/search/machine.h"
#include "tessera/planner/search/recomputed_parts.h"
#include "tessera/planner/step_plan.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::planner {

/// What is run of RunSettings.
struct SettingsRun {
  int64_t accumulate = 1; ///< micro-batches of a step
  /// A model that has so many layers, RunSettings::can_plan_fewer_layers;
  /// nothing: its own.
  std::optional<int64_t> layers;
  /// Of pipeline stages that are alike, one.
  bool alike_stages_once = false;
};

struct RunSettings {
  EngineOptions engine;
  ParallelOptions parallel;
  int64_t batch_size = 1; ///< rows of a rank's micro-batch
  int64_t accumulate = 1; ///< micro-batches of a step
  RecomputedParts recomputed;
  /// What a micro-batch's throughput is counted in: its tokens, or its rows.
  int64_t tokens = 1;
  /// Tokens of a sequence that could be shorter (`model.max_length`); 0: there
  /// are none.
  int64_t max_length = 0;

  /// Layers of the model; 0: it has none that can be told.
  int64_t layers = 0;
  /// All layers are alike, so that pipeline stages of as many are.
  bool has_alike_layers = false;
  /// Dry runs of models with fewer layers say what a layer adds.
  bool can_plan_fewer_layers = false;
  /// Ranks may divide layers and the sequence of layers.
  bool divides_model = true;
  /// Ranks may have experts of their own (`parallel.expert`).
  bool has_experts = false;
  /// `layers` can be recomputed as a whole.
  bool recomputes_layers = true;
  /// RecomputedParts::attention is an option of the model.
  bool recomputes_attention = true;
  /// Micro-batches may have other numbers of rows.
  bool changes_rows = true;

  /// The dry run of these settings, by pipeline stage.
  std::function<std::vector<StepMemoryPlan>(
      const Machine& machine,
      const SettingsRun& run)>
      plan;
};

/// The settings of a run with `key.path=value` each set.
/// @throws tessera::Error on keys and values that cannot be.
using ReadRun =
    std::function<RunSettings(const std::vector<std::string>& overrides)>;

} // namespace tessera::planner
