// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StepPlanner` records the events of a step, makes plans from them that all
// ranks agree on, and knows the place of this rank in its plan.

#include "tessera/sharding/pages/page_ranks.h"
#include "tessera/sharding/pages/slot_plan.h"
#include "tessera/sharding/plans/plan_cursor.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::sharding {

/// Touches no tensors of pages.
class StepPlanner {
 public:
  /// @param updates_in_backward as in PagerOptions.
  StepPlanner(size_t pages, bool updates_in_backward)
      : updates_in_backward_(updates_in_backward), final_reductions_(pages) {}

  PlanPhase phase() const {
    return phase_;
  }
  void set_phase(PlanPhase phase) {
    phase_ = phase;
  }
  /// The record and plan of the phase.
  PlanCursor& cursor() {
    return cursors_[static_cast<size_t>(phase_)];
  }

  /// Whether a page's gradients, and with updates in backward its weights,
  /// are not used any more in this step after its reduction at `entry` of the
  /// plan.
  /// @param page its number.
  bool is_final(int page, std::optional<size_t> entry) const {
    return entry && final_reductions_[static_cast<size_t>(page)] == entry &&
           phase_ == PlanPhase::kTrain;
  }

  /// Ends the step: makes plans from the records where some rank has none, if
  /// all ranks have recorded the same, and begins new records. Collective;
  /// blocks.
  /// @return the room that the plans need, at least `budget`.
  SlotBudget adopt_plans(
      const SlotPlan& slots,
      PageRanks& ranks,
      SlotBudget budget);

 private:
  /// @param budget raised to what the plan needs.
  static std::optional<ResidencyPlan> make_plan(
      const std::vector<PlanEvent>& events,
      const SlotPlan& slots,
      bool logs,
      SlotBudget& budget);
  void note_final_reductions();

  bool updates_in_backward_;
  std::array<PlanCursor, kPlanPhaseCount> cursors_;
  PlanPhase phase_ = PlanPhase::kTrain;
  /// Per page, the entry of the train plan at which its gradients are final.
  std::vector<std::optional<size_t>> final_reductions_;
};

} // namespace tessera::sharding
