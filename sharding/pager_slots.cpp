// SPDX-License-Identifier: Apache-2.0
// `Pager`: arenas for unsharded groups and whole gradients, and the plans that
// use them.
#include "tessera/sharding/pager.h"

#include "tessera/runtime/core/log.h"

namespace tessera::sharding {

void Pager::make_slots(std::optional<int64_t> budget_bytes) {
  has_budget_ = budget_bytes || options_.gather_bytes;
  const int64_t gather_bytes = slots_.gather_bytes(budget_bytes);
  if (const int64_t bytes = slots_.reduce_bytes(); bytes > 0) {
    reduce_arena_.resize(bytes);
  }
  if (gather_bytes > 0) {
    gather_arena_.resize(gather_bytes);
  }
}

std::optional<ResidencyPlan> Pager::make_plan(
    const std::vector<PlanEvent>& events) {
  PlanLimits limits = plan_limits();
  auto plan = compile_plan(events, limits);
  // A budget is kept at any cost; a capacity that was computed from an expected
  // order of use that turned out wrong grows.
  if ((!plan || plan->exposed_unshards > 0) && !has_budget_) {
    const int64_t needed = capacity_without_exposed_unshards(events, limits);
    if (needed > limits.capacity_bytes) {
      if (rank() == 0) {
        log_info(
            "gather slots grow from {} to {} bytes: the model uses its parameters in a different order than it registers them",
            limits.capacity_bytes,
            needed);
      }
      gather_arena_.resize(needed);
      limits.capacity_bytes = needed;
    }
    plan = compile_plan(events, limits);
  }
  const int64_t reduce_bytes = slots_.reduce_bytes(events);
  if (reduce_bytes > reduce_arena_.capacity_bytes()) {
    while (!held_slots_.empty()) {
      release_held_slot();
    }
    reduce_arena_.resize(reduce_bytes);
  }
  return plan;
}

} // namespace tessera::sharding
