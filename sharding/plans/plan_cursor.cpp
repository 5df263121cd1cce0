// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/plans/plan_cursor.h"

#include <algorithm>
#include <utility>

namespace tessera::sharding {

void PlanCursor::rewind() {
  events_.clear();
  next_ = 0;
  departed_ = false;
  overflow_ = false;
}

void PlanCursor::record(PlanEvent event) {
  if (events_.size() < kMaxEvents) {
    events_.push_back(std::move(event));
  } else {
    overflow_ = true;
  }
}

std::optional<PlanCursor::Range> PlanCursor::advance_to_touch(
    const std::vector<int>& groups,
    bool in_backward) {
  for (size_t i = next_; i < plan_->entries.size(); ++i) {
    const PlanEntry& entry = plan_->entries[i];
    if (entry.kind != PlanEvent::Kind::kTouch ||
        entry.in_backward != in_backward) {
      return std::nullopt;
    }
    if (std::includes(
            entry.groups.begin(),
            entry.groups.end(),
            groups.begin(),
            groups.end())) {
      return Range{std::exchange(next_, i + 1), i + 1};
    }
  }
  return std::nullopt;
}

std::optional<PlanCursor::Range> PlanCursor::advance_to_backward_end() {
  for (size_t i = next_; i < plan_->entries.size(); ++i) {
    if (plan_->entries[i].kind == PlanEvent::Kind::kBackwardEnd) {
      return Range{std::exchange(next_, i + 1), i + 1};
    }
  }
  return std::nullopt;
}

} // namespace tessera::sharding
