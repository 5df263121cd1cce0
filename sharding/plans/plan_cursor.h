// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PlanCursor` tracks the position of a step in its plan and records the events
// from which the next plan is made. No tensors, no communication.

#include "tessera/sharding/plans/residency_plan.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::sharding {

/// Kinds of steps, each with a plan of its own.
enum class PlanPhase { kTrain = 0, kNoGrad = 1 };
inline constexpr size_t kPlanPhaseCount = 2;

class PlanCursor {
 public:
  /// Maximum number of events recorded; a longer phase has no plan.
  static constexpr size_t kMaxEvents = 1 << 18;

  /// Goes back to the beginning and drops what was recorded.
  void rewind();

  bool at_beginning() const {
    return events_.empty();
  }

  void record(PlanEvent event);

  /// Returns whether this rank follows a plan.
  bool following() const {
    return plan_.has_value() && !departed_;
  }

  /// Returns the plan's entries from the current one up to the one that covers
  /// a touch of `groups`, as [first, last): all are to be performed, the last
  /// one waited for. The cursor advances past it. Returns nothing when the plan
  /// has no such entry ahead in this pass.
  struct Range {
    size_t first = 0;
    size_t last = 0;
  };
  std::optional<Range> advance_to_touch(
      const std::vector<int>& groups,
      bool in_backward);

  /// Returns the entries up to and including the next backward end.
  std::optional<Range> advance_to_backward_end();

  /// Makes this rank work without a plan until rewind().
  void depart() {
    departed_ = true;
  }

  bool has_plan() const {
    return plan_.has_value();
  }
  const ResidencyPlan& plan() const {
    return *plan_;
  }
  const PlanEntry& entry(size_t index) const {
    return plan_->entries[index];
  }

  /// Returns whether the events since rewind() require a new plan: there was
  /// none, or it was departed from.
  bool needs_plan() const {
    return !events_.empty() && !overflow_ && !following();
  }
  const std::vector<PlanEvent>& events() const {
    return events_;
  }
  void set_plan(std::optional<ResidencyPlan> plan) {
    plan_ = std::move(plan);
  }

 private:
  std::optional<ResidencyPlan> plan_;
  std::vector<PlanEvent> events_;
  size_t next_ = 0;
  bool departed_ = false;
  bool overflow_ = false;
};

} // namespace tessera::sharding
