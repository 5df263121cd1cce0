// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/paging/step_planner.h"

#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/size_text.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

namespace tessera::sharding {

SlotBudget StepPlanner::adopt_plans(
    const SlotPlan& slots,
    PageRanks& ranks,
    SlotBudget budget) {
  // [needs a plan, hash of its events] per phase, from every rank.
  std::vector<int64_t> self_values;
  for (const PlanCursor& cursor : cursors_) {
    self_values.push_back(cursor.needs_plan() ? 1 : 0);
    self_values.push_back(static_cast<int64_t>(hash_of(cursor.events())));
  }
  const auto fields = static_cast<int64_t>(self_values.size());
  const at::Tensor all = at::empty({fields * ranks.size()}, at::kLong);
  ranks.control()
      .all_gather(
          all, at::tensor(self_values, at::kLong), "comparison of the plans")
      .wait(ranks.watch_failures());
  const auto* stated = all.const_data_ptr<int64_t>();

  for (size_t phase = 0; phase < cursors_.size(); ++phase) {
    PlanCursor& cursor = cursors_[phase];
    bool wanted = false;
    bool same = true;
    for (int r = 0; r < ranks.size(); ++r) {
      const int64_t* peer_fields = stated + r * fields + 2 * phase;
      wanted = wanted || peer_fields[0] != 0;
      same = same && peer_fields[1] == stated[2 * phase + 1];
    }
    if (wanted) {
      cursor.set_plan(std::nullopt);
      if (same) {
        cursor.set_plan(
            make_plan(cursor.events(), slots, ranks.rank() == 0, budget));
      }
      if (phase == static_cast<size_t>(PlanPhase::kTrain)) {
        note_final_reductions();
      }
    }
    cursor.rewind();
  }
  return budget;
}

std::optional<ResidencyPlan> StepPlanner::make_plan(
    const std::vector<PlanEvent>& events,
    const SlotPlan& slots,
    bool logs,
    SlotBudget& budget) {
  PlanLimits limits = slots.limits(budget.gather_bytes, budget.has_budget);
  auto plan = compile_plan(events, limits);
  if ((!plan || plan->exposed_unshards > 0) && !budget.has_budget) {
    const int64_t needed = capacity_without_exposed_unshards(events, limits);
    if (needed > limits.capacity_bytes) {
      if (logs) {
        log_info(
            "gather slots grow from {} to {}, above the memory table: the model uses its parameters in another order than it registers them, as in an evaluation; to stay within a budget, set memory.device_bytes",
            runtime::size_text(limits.capacity_bytes),
            runtime::size_text(needed));
      }
      budget.gather_bytes = needed;
      limits.capacity_bytes = needed;
    }
    plan = compile_plan(events, limits);
  }
  budget.reduce_bytes =
      std::max(budget.reduce_bytes, slots.reduce_bytes(events));
  return plan;
}

void StepPlanner::note_final_reductions() {
  const size_t pages = final_reductions_.size();
  const PlanCursor& cursor = cursors_[static_cast<size_t>(PlanPhase::kTrain)];
  final_reductions_ =
      cursor.has_plan() ? final_reductions(cursor.plan(), updates_in_backward_)
                        : std::vector<std::optional<size_t>>{};
  final_reductions_.resize(pages);
}

} // namespace tessera::sharding
