// SPDX-License-Identifier: Apache-2.0
#pragma once
// `search_plans()` plans a training run in many layouts and finds those that
// fit and are fast.

#include "tessera/planner/search/machine.h"
#include "tessera/planner/search/planned_run.h"
#include "tessera/planner/search/run_settings.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::planner {

/// Gains below this share of a step's time are no reason to divide
/// micro-batches: what each costs besides its operators, launches and the
/// smaller products, is not in an estimate.
inline constexpr double kTimeAccuracy = 0.15;

struct PlanSearch {
  /// The run that is planned.
  ReadRun read;
  /// Keys that are set in all layouts.
  std::vector<std::string> overrides;
  Machine machine;
  /// Only the layout that the configuration has.
  bool as_given = false;
  /// Plans every layout with all layers and what each can recompute, as for
  /// models whose layers differ. Takes minutes and finds the same.
  bool in_full = false;
  /// Called before each dry run with their number so far and the fastest that
  /// fits, or null; may be empty.
  std::function<void(int64_t dry_runs, const PlannedRun* best)> progress;
};

/// Something else that would fit where nothing does, planned.
struct PlannedChange {
  std::string change; ///< "--devices 16", "model.max_length=1024"
  PlannedRun run;
  /// `run` is what a search with this change finds; else others may be faster.
  bool is_fastest = false;
};

struct PlanAnswer {
  /// The configuration as it is, first, and then others; those that are bounds
  /// (PlannedRun::is_bound) last.
  std::vector<PlannedRun> runs;
  /// In `runs`: the fastest that fits; of the same layout, which uses memory
  /// the same way or is the configuration as it is, the one with the fewest
  /// micro-batches that is slower by at most kTimeAccuracy. Nothing if none
  /// fits.
  std::optional<size_t> best;
  int64_t dry_runs = 0;
  /// Without placements that the configuration fixes, if that is faster than
  /// the best by more than a fiftieth, or fits where nothing does.
  std::optional<PlannedChange> lifted;
  /// If nothing fits: of all that were tried, the one that lacks least, in
  /// `runs`, and what would fit.
  std::optional<size_t> nearest;
  std::vector<PlannedChange> changes;
  /// Of a step of the configuration as it is, and of the layouts that were
  /// tried.
  int64_t given_examples = 0;
  int64_t examples = 0;
  /// Whether the ranks of some layout can have as many examples each.
  bool can_share_examples = true;

  const PlannedRun* best_run() const {
    return best ? &runs[*best] : nullptr;
  }
};

/// Plans a run as it is; then, unless PlanSearch::as_given, others
/// with the same number of examples per step: tensor ranks within a node,
/// pipeline stages, larger micro-batches, each with as little repeated work as
/// fits: cheap operators, attention where that saves memory, and as few layers
/// as are still needed, with divided inputs where sequences cannot be. With
/// host memory, optimizer state, activations, and with a budget what else does
/// not fit, rest there where nothing else fits or where that is faster. Where
/// all-gathers take longer than computation, so are ZeRO stages 2 and 1, and a
/// budget that keeps weights unsharded in what is left.
///
/// Layouts are ordered by what they take at least (RunEstimate), and planned
/// from the fastest on until the rest cannot be faster.
/// @throws tessera::Error on settings that cannot be read.
PlanAnswer search_plans(const PlanSearch& search);

} // namespace tessera::planner
